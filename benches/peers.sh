#!/usr/bin/env bash
# Measures spanscore and a real OpenTelemetry Collector in the same rounds: forwarding only, and grouping by trace
# (goal 9). CI does not run this script.
#   OTELCOL=/path/to/otelcol [SPANSCORE=/path/to/spanscore] benches/peers.sh [--rounds N]
# The Collector needs otlpreceiver, otlpexporter, batchprocessor and groupbytraceprocessor: otelcol-contrib has them, or
# build one with the builder (go install go.opentelemetry.io/collector/cmd/builder@v0.160.0). benches/peers/*.yaml
# configure it.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${OTELCOL:?set OTELCOL to the path of an OpenTelemetry Collector}"
[ -x "$OTELCOL" ] || { echo "$OTELCOL is not a program" >&2; exit 2; }
"$OTELCOL" --version
. benches/measured.sh
OTELCOL=$(realpath "$OTELCOL") cargo bench --locked --profile dist --bench sidecar -- peers --program "$SPANSCORE" "$@"
