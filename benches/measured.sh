# Sets SPANSCORE to the program to measure; builds it in the profile `dist` if SPANSCORE is not set. figures.sh and peers.sh
# source this file.
if [ -z "${SPANSCORE:-}" ]; then
  # Copies the program, because the benchmarks overwrite it by a build with the features that tests enable in dependencies.
  cargo build --profile dist --locked
  mkdir -p target/measured
  cp target/dist/spanscore target/measured/spanscore
  SPANSCORE=$PWD/target/measured/spanscore
fi
[ -x "$SPANSCORE" ] || { echo "$SPANSCORE is not a program" >&2; exit 2; }
SPANSCORE=$(realpath "$SPANSCORE")
export SPANSCORE
