#!/usr/bin/env bash
# An OpenTelemetry Collector with the parts that the router needs, built from its Go modules: collector.sh VERSION
#
# Prints the path of the program, which stays in the cache. 0.150.0 is the version that the overlay names; 0.160.0 is the newest of which every
# module can be had from the public proxy. A minute or two on a quiet machine, each once.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
version=${1:?which version?}
# The modules that are stable have a number of their own.
case $version in
  0.150.0) stable=1.56.0 ;;
  0.160.0) stable=1.66.0 ;;
  *) fail "the stable modules of Collector $version are not known here" ;;
esac
program=$CACHE/bin/otelcol-$version
[ ! -x "$program" ] || { echo "$program"; exit; }
command -v go >/dev/null || fail "go is needed to build a Collector"
work=$CACHE/build-otelcol-$version; rm -rf "$work"; mkdir -p "$work"; cd "$work"
cat >builder.yaml <<YAML
dist: { name: otelcol, description: the router's parts, output_path: $work/source, version: $version }
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v$version
exporters:
  - gomod: github.com/open-telemetry/opentelemetry-collector-contrib/exporter/loadbalancingexporter v$version
providers:
  - gomod: go.opentelemetry.io/collector/confmap/provider/envprovider v$stable
  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v$stable
  - gomod: go.opentelemetry.io/collector/confmap/provider/yamlprovider v$stable
YAML
say "building Collector $version"
GOBIN=$work go install "go.opentelemetry.io/collector/cmd/builder@v$version" >&2
# Without `go mod tidy`, which asks for modules of tests that the proxy does not have.
./builder --config builder.yaml --skip-get-modules --skip-compilation >&2
cd source
CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w' -o "$program" . >&2
echo "$program"
