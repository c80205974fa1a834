#!/usr/bin/env bash
# Prints all figures of docs/performance.md, measured in the profile `dist`. After the builds it takes about twelve
# minutes, in which the machine must be idle otherwise.
#   [OTELCOL=/path/to/otelcol] [SPANSCORE=/path/to/spanscore] benches/figures.sh [--record] [--rounds N]
# N is 7 by default. With OTELCOL, the script also measures goal 9 (benches/peers.sh). SPANSCORE names the program to
# measure, for example one that deploy/build.sh built. --record writes the figures to benches/figures.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --record ]; then
  shift
  "benches/$(basename "$0")" "$@" | tee target/figures.txt
  mv target/figures.txt benches/figures.txt
  exit
fi
. benches/measured.sh
cargo bench --locked --profile dist --no-run
date -u +%FT%TZ
echo "program: ${SPANSCORE#"$PWD"/}"
grep -m 1 'model name' /proc/cpuinfo
rustc --version
uptime
cargo bench --locked --profile dist --quiet --bench scan
cargo bench --locked --profile dist --quiet --bench buffer
cargo bench --locked --profile dist --quiet --bench lcs
cargo bench --locked --profile dist --quiet --bench sidecar -- --program "$SPANSCORE" "$@"
[ -z "${OTELCOL:-}" ] || benches/peers.sh "$@"
uptime
