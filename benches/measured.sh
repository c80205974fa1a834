# Sourced by figures.sh and peers.sh: which program is measured, in SPANSCORE. The release is built unless another is named.
if [ -z "${SPANSCORE:-}" ]; then
  # The benchmarks build it once more in its place, with the features that tests want of its dependencies.
  cargo build --release --locked
  mkdir -p target/measured
  cp target/release/spanscore target/measured/spanscore
  SPANSCORE=$PWD/target/measured/spanscore
fi
[ -x "$SPANSCORE" ] || { echo "$SPANSCORE is no program" >&2; exit 2; }
SPANSCORE=$(realpath "$SPANSCORE")
export SPANSCORE
