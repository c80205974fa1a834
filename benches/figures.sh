#!/usr/bin/env bash
# All figures of docs/performance.md, on standard output: about twelve minutes of a quiet machine, after the builds.
#   [OTELCOL=/path/to/otelcol] [SPANSCORE=/path/to/spanscore] benches/figures.sh [--record] [--rounds N]
# Rounds are seven unless given. With OTELCOL also goal 9, see benches/peers.sh. With SPANSCORE that program is measured (what deploy/build.sh built,
# perhaps), else the release. --record puts the figures into docs/performance.md.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --record ]; then
  shift
  figures=$(mktemp)
  trap 'rm -f "$figures"' EXIT
  "benches/$(basename "$0")" "$@" | tee "$figures"
  awk -v figures="$figures" '
    /^<!-- end of figures -->/ { within = 0 }
    !within { print }
    /^<!-- figures -->/ { within = 1; print "```"; while ((getline line < figures) > 0) print line; print "```" }
  ' docs/performance.md >"$figures.md"
  mv "$figures.md" docs/performance.md
  exit
fi
. benches/measured.sh
cargo bench --locked --no-run
date -u +%FT%TZ
echo "program: ${SPANSCORE#"$PWD"/}"
grep -m 1 'model name' /proc/cpuinfo
rustc --version
uptime
cargo bench --locked --quiet --bench scan
cargo bench --locked --quiet --bench buffer
cargo bench --locked --quiet --bench lcs
cargo bench --locked --quiet --bench sidecar -- --program "$SPANSCORE" "$@"
[ -z "${OTELCOL:-}" ] || benches/peers.sh "$@"
uptime
