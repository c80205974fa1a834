# Sourced by figures.sh and peers.sh: sets SPANSCORE to the program to measure, built in `dist` unless it is set already.
if [ -z "${SPANSCORE:-}" ]; then
  # A copy: the benchmarks build it again in the same place, with the features that tests enable in dependencies.
  cargo build --profile dist --locked
  mkdir -p target/measured
  cp target/dist/spanscore target/measured/spanscore
  SPANSCORE=$PWD/target/measured/spanscore
fi
[ -x "$SPANSCORE" ] || { echo "$SPANSCORE is not a program" >&2; exit 2; }
SPANSCORE=$(realpath "$SPANSCORE")
export SPANSCORE
