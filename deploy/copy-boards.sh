#!/usr/bin/env bash
# Copies the alert rules, the Grafana board and the injection policy into the kustomize folders and the chart, none of which may read files
# outside its own folder. Run it after a change of one; a test (src/export/tests/boards.rs) compares them.
set -euo pipefail
cd "$(dirname "$0")"
component=kustomize/components/monitoring
chart=helm/spanscore/files
mkdir -p "$chart"
cp grafana/spanscore.json "$component/spanscore-board.json"
cp grafana/spanscore.json "$chart/spanscore-board.json"
cp prometheus/rules.yaml "$chart/rules.yaml"
cp kustomize/inject/v1beta1/policy.yaml "$chart/inject.yaml"
sed 's|admissionregistration.k8s.io/v1beta1|admissionregistration.k8s.io/v1|' kustomize/inject/v1beta1/policy.yaml >kustomize/inject/v1/policy.yaml
{
  cat <<'YAML'
# Made by deploy/copy-boards.sh from deploy/prometheus/rules.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: spanscore
  labels: { app.kubernetes.io/name: spanscore }
spec:
YAML
  sed 's/^\(.\)/  \1/' prometheus/rules.yaml
} >"$component/prometheusrule.yaml"
