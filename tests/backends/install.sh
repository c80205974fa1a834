#!/usr/bin/env bash
# Installs the backends that tests/it/backends sends scores to, at the versions that it is written for, into one folder:
#   tests/backends/install.sh [collector|jaeger|prometheus|promtool|phoenix|mlflow …]       (default: these)
#   tests/backends/install.sh kafka_collector                                               (for tests/kafka/run)
# The folder is $TEST_BACKENDS, or spanscore-backends in the user's cache; the tests look in the same place. What is there already is
# left alone. Needs Go 1.25 (the first four) and Python 3.11 with venv (the last two), and what these fetch from their registries; takes
# about a quarter of an hour on two cores.
set -euo pipefail
DIR=${TEST_BACKENDS:-${XDG_CACHE_HOME:-$HOME/.cache}/spanscore-backends}
mkdir -p "$DIR"

# A main package of a module that `go install` refuses, since its go.mod has `replace` lines: FILE MODULE VERSION PACKAGE [build flags]
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
  # Its replacements by other modules have to be repeated here.
  sed -n 's/^replace \([^ ]*\) => \([^ .][^ ]*\) \(v[^ ]*\)$/\1=\2@\3/p' "$cache/go.mod" | while read -r replace; do
    go mod edit -replace "$replace"
  done
  go build -mod=mod -ldflags '-s -w' "$@" -o "$DIR/$file" "$package"
  cd "$DIR"
  rm -rf "$work"
}

# A program of a Python package in an environment of its own: FOLDER PACKAGE==VERSION PROGRAM
from_pypi() {
  local folder=$1 package=$2 program=$3
  python3 -m venv "$DIR/$folder"
  "$DIR/$folder/bin/pip" install --quiet --disable-pip-version-check "$package"
  test -x "$DIR/$folder/bin/$program"
}

collector() { # OpenTelemetry Collector 0.160: OTLP in, the debug exporter out
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
# The same with Kafka on both sides. The receiver's own 0.160 is not on the module proxy; its 0.155 runs on the other modules' 0.160.
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
# Jaeger 2; its module is still numbered 1. The query API is real, the web page of such a build is a placeholder.
jaeger() { from_module jaeger github.com/jaegertracing/jaeger v1.76.0 github.com/jaegertracing/jaeger/cmd/jaeger; }
# Prometheus 3.8, without service discovery, which is most of its build.
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
