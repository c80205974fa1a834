#!/usr/bin/env bash
# Everything in deploy/ that Kubernetes reads: rendered, held to the schemas of Kubernetes 1.29 and of the newest one the checker knows,
# the charts linted, and every configuration in them checked by spanscore itself.
#
#   manifests.sh [BINARY]     the spanscore that validates; target/release or target/debug if not given
#   CHART=FILE.tgz manifests.sh [BINARY]     with the chart as a release packs it
#
# A spanscore without Kafka checks configurations for Kafka only as far as it can, and says so.
#
# Does not prove that a cluster takes and runs it; on-node.sh does, but runs no judge.
. "$(dirname "$0")/lib.sh"
spanscore=${1:-}
for built in "$root/target/release/spanscore" "$root/target/debug/spanscore"; do
  [ -n "$spanscore" ] || [ ! -x "$built" ] || spanscore=$built
done
[ -n "$spanscore" ] || fail "no spanscore to validate with: build it, or name it"

rendered=$out/rendered; rm -rf "$rendered"; mkdir -p "$rendered"
python_with "kubernetes-validate==$KUBERNETES_VALIDATE_VERSION" pyyaml || { skip "the manifests: no Python environment with kubernetes-validate"; exit 0; }

# === kustomize
if command -v kubectl >/dev/null || go_program kustomize "sigs.k8s.io/kustomize/kustomize/v5@v$KUSTOMIZE_VERSION"; then
  for overlay in "$root"/deploy/kustomize/overlays/* "$root"/deploy/kustomize/inject/* "$here"/overlays/*; do
    kustomize_build "$overlay" >"$rendered/kustomize-$(basename "$overlay").yaml" || fail "$overlay"
  done
else
  skip "kustomize: no kubectl, no kustomize, and no go to build one"
fi

# === Helm
if go_program helm "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION"; then
  chart=${CHART:-$root/deploy/helm/spanscore} all_values=$root/deploy/helm/spanscore/ci
  agent_chart=$out/agent-chart; rm -rf "$agent_chart"; cp -r "$here/agent-chart" "$agent_chart"; mkdir "$agent_chart/charts"; cp -r "$chart" "$agent_chart/charts/"
  for values in "$all_values"/*-values.yaml; do
    name=$(basename "$values" -values.yaml)
    helm lint --strict --quiet --kube-version 1.29.0 "$chart" -f "$values" || fail "helm lint with $values"
    helm template "$name" "$chart" --namespace test --kube-version 1.29.0 -f "$values" >"$rendered/helm-$name.yaml" || fail "helm template with $values"
  done
  helm template agent "$agent_chart" --namespace test --kube-version 1.29.0 >"$rendered/helm-agent-chart.yaml" || fail "helm template of a chart that takes the sidecar"
  helm template plain "$chart" --namespace test --kube-version 1.29.0 -f "$all_values/autoscaling-values.yaml" --set journal.enabled=false >"$rendered/helm-gateway-without-journal.yaml" || fail "helm template of a gateway without a journal"
  helm template writer "$chart" --namespace test --kube-version 1.29.0 -f "$all_values/writer-values.yaml" --set journal.enabled=true >"$rendered/helm-writer-journal.yaml" || fail "helm template of a writer with a journal"
  helm template agent "$agent_chart" --namespace test --kube-version 1.29.0 --set spanscore.journal.enabled=true >"$rendered/helm-agent-journal.yaml" || fail "helm template of a sidecar with a journal"
  # Values that must be refused, with the reason.
  refused() { # TEXT ARGUMENT…
    local text=$1 answer; shift
    ! answer=$(helm template wrong "$chart" --kube-version 1.29.0 "$@" 2>&1) || fail "helm template $* is not refused"
    [[ $answer == *"$text"* ]] || fail "helm template $* is refused with: $answer"
  }
  refused "value must be one of" --set mode=daemonset
  refused "image.repository is empty" --set mode=gateway
  refused "additional properties 'imag' not allowed" --set mode=gateway --set imag.tag=x
  refused "additional properties 'endpont' not allowed" --set mode=gateway --set image.repository=x --set config.forward.endpont=x
  refused "additional properties 'limit' not allowed" --set mode=gateway --set image.repository=x --set resources.limit.memory=1Gi
  refused "additional properties 'periodSecond' not allowed" --set mode=gateway --set image.repository=x --set livenessProbe.periodSecond=1
  refused "terminationGracePeriodSeconds is 20, and shutdown.deadline 20s" --set mode=gateway --set image.repository=x --set terminationGracePeriodSeconds=20
  refused "terminationGracePeriodSeconds is 30, and shutdown.deadline 2m" --set mode=gateway --set image.repository=x --set config.shutdown.deadline=2m
  refused "config.kafka.brokers is empty" --set mode=judge --set image.repository=x
  refused "a judge needs no journal" --set mode=judge --set image.repository=x --set config.kafka.brokers={kafka:9092} --set journal.enabled=true
  refused "additional properties 'lagSeconds' not allowed" --set mode=judge --set image.repository=x --set judge.autoscaling.lagSeconds=1
  refused "podMonitor is for modes" --set mode=gateway --set image.repository=x --set podMonitor.enabled=true
  refused "mode must be \`sidecar\`, \`gateway\` or \`judge\`" --set image.repository=x
else
  skip "the chart: no helm, and no go to build one"
fi

compgen -G "$rendered/*.yaml" >/dev/null || exit 0
for version in 1.29 1.37; do
  log=$rendered/schema-$version.log
  "$python" -m kubernetes_validate --quiet --strict -k "$version" "$rendered"/*.yaml >"$log" 2>&1 || { cat "$log" >&2; fail "manifests that Kubernetes $version would not take"; }
  # Only the kinds of the Prometheus operator and of KEDA have no schema; any other is a kind or version that is misspelt or too new.
  ! grep -v "Couldn't find schema for kind \(PodMonitor\|ServiceMonitor\|PrometheusRule\|ScaledObject\|MutatingAdmissionPolicy\(Binding\)\?\) " "$log" >&2 || fail "manifests that Kubernetes $version does not know"
done
# Injection is newer than 1.29; its stable version is known from 1.36 on.
if [ -f "$rendered/kustomize-v1.yaml" ]; then
  "$python" -m kubernetes_validate --strict -k 1.37 "$rendered/kustomize-v1.yaml" >"$log" 2>&1 && ! grep -q "Couldn't find schema" "$log" ||
    { cat "$log" >&2; fail "an injection policy that Kubernetes 1.37 would not take"; }
fi
"$python" "$here/rendered.py" "$spanscore" "$root" "$rendered" || fail "see above"
say "$(find "$rendered" -name '*.yaml' | wc -l) renderings fit Kubernetes 1.29 and 1.37"
