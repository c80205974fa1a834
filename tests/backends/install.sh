#!/usr/bin/env bash
# Installs the backends of tests/it/backends, in the versions for which those tests are written, into one folder:
#   tests/backends/install.sh [collector|jaeger|prometheus|promtool|phoenix|mlflow …]       (default: these)
#   tests/backends/install.sh kafka_collector                                               (for tests/kafka/run)
# The folder is $TEST_BACKENDS, or spanscore-backends in the user's cache; the tests look in the same folder. Skips backends that are
# already installed. The first four need Go 1.25, the last two Python 3.11 with venv; all need access to the package registries. The
# installation takes about a quarter of an hour on two cores.
set -euo pipefail
DIR=${TEST_BACKENDS:-${XDG_CACHE_HOME:-$HOME/.cache}/spanscore-backends}
mkdir -p "$DIR"

# Builds a main package whose module `go install` refuses, because its go.mod has `replace` lines. Arguments: FILE MODULE VERSION PACKAGE
# [build flags].
from_module() {
  local file=$1 module=$2 version=$3 package=$4 work cache
  shift 4
  work=$(mktemp -d "$DIR/build-XXXXXX")
  cd "$work"
  go mod download "$module@$version"
  cache="$(go env GOMODCACHE)/$module@$version"
  go mod init "example/$file" 2>/dev/null
  go mod edit -require "$module@$version"
  install -m 644 "$cache/go.sum" go.sum
  # Repeat the module's replacements by other modules, because Go ignores the `replace` lines of a dependency.
  sed -n 's/^replace \([^ ]*\) => \([^ .][^ ]*\) \(v[^ ]*\)$/\1=\2@\3/p' "$cache/go.mod" | while read -r replace; do
    go mod edit -replace "$replace"
  done
  go build -mod=mod -ldflags '-s -w' "$@" -o "$DIR/$file" "$package"
  cd "$DIR"
  rm -rf "$work"
}

# Installs a Python package in a separate environment. Arguments: FOLDER PACKAGE==VERSION PROGRAM.
from_pypi() {
  local folder=$1 package=$2 program=$3
  python3 -m venv "$DIR/$folder"
  "$DIR/$folder/bin/pip" install --quiet --disable-pip-version-check "$package"
  test -x "$DIR/$folder/bin/$program"
}

collector() { # OpenTelemetry Collector 0.160 with the OTLP receiver and the debug exporter
  local work
  work=$(mktemp -d "$DIR/build-XXXXXX")
  GOBIN=$work go install go.opentelemetry.io/collector/cmd/builder@v0.160.0
  cat >"$work/collector.yaml" <<EOF
dist: { name: otelcol, description: a collector to test against, output_path: "$work/otelcol", version: 0.160.0 }
receivers: [{ gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v0.160.0 }]
exporters: [{ gomod: go.opentelemetry.io/collector/exporter/debugexporter v0.160.0 }]
EOF
  "$work/builder" --config "$work/collector.yaml"
  mv "$work/otelcol/otelcol" "$DIR/otelcol"
  rm -rf "$work"
}
# The Collector with a receiver and an exporter for Kafka. The module proxy has no version 0.160 of the Kafka receiver; its version 0.155
# works with version 0.160 of the other modules.
kafka_collector() {
  local work contrib=github.com/open-telemetry/opentelemetry-collector-contrib
  work=$(mktemp -d "$DIR/build-XXXXXX")
  GOBIN=$work go install go.opentelemetry.io/collector/cmd/builder@v0.160.0
  cat >"$work/collector.yaml" <<EOF
dist: { name: otelcol, description: a collector to test against, output_path: "$work/otelcol", version: 0.160.0 }
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v0.160.0
  - gomod: $contrib/receiver/kafkareceiver v0.155.0
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/otlphttpexporter v0.160.0
  - gomod: $contrib/exporter/kafkaexporter v0.160.0
EOF
  "$work/builder" --config "$work/collector.yaml"
  mv "$work/otelcol/otelcol" "$DIR/otelcol-kafka"
  rm -rf "$work"
}
# Jaeger 2, whose module has version 1. This build has the query API, but only a placeholder for the web page.
jaeger() { from_module jaeger github.com/jaegertracing/jaeger v1.76.0 github.com/jaegertracing/jaeger/cmd/jaeger; }
# Prometheus 3.8 without service discovery, which takes most of the time to build.
prometheus() { from_module prometheus github.com/prometheus/prometheus v0.308.0 github.com/prometheus/prometheus/cmd/prometheus -tags remove_all_sd; }
promtool() { from_module promtool github.com/prometheus/prometheus v0.308.0 github.com/prometheus/prometheus/cmd/promtool -tags remove_all_sd; }
phoenix() { from_pypi arize-phoenix arize-phoenix==20.26.1 phoenix; }
mlflow() { from_pypi mlflow mlflow==3.17.2 mlflow; }

declare -A FILES=(
  [collector]=otelcol [kafka_collector]=otelcol-kafka [jaeger]=jaeger [prometheus]=prometheus [promtool]=promtool
  [phoenix]=arize-phoenix/bin/phoenix [mlflow]=mlflow/bin/mlflow
)
[ $# -gt 0 ] || set -- collector jaeger prometheus promtool phoenix mlflow
for name; do
  file=${FILES[$name]:-}
  [ -n "$file" ] || { echo "no backend \`$name\`: ${!FILES[*]}" >&2; exit 2; }
  if [ ! -x "$DIR/$file" ]; then
    echo "installing $name into $DIR" >&2
    "$name" >&2
  fi
  echo "$DIR/$file"
done
