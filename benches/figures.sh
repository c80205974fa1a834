#!/usr/bin/env bash
# All figures of docs/performance.md, on standard output: about twelve minutes of a quiet machine, after the builds.
#   [OTELCOL=/path/to/otelcol] benches/figures.sh [--rounds N]
# Rounds are seven unless given. With OTELCOL also goal 9, see benches/peers.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked
cargo bench --locked --no-run
date -u +%FT%TZ
grep -m 1 'model name' /proc/cpuinfo
rustc --version
uptime
cargo bench --locked --quiet --bench scan
cargo bench --locked --quiet --bench buffer
cargo bench --locked --quiet --bench lcs
cargo bench --locked --quiet --bench sidecar -- --program target/release/spanscore "$@"
if [ -n "${OTELCOL:-}" ]; then
  cargo bench --locked --quiet --bench sidecar -- peers --program target/release/spanscore "$@"
fi
uptime
