# Sourced by on-node.sh: the gateway of several pods behind its router while both change, and the verdicts that this costs.

GATEWAY_AGENTS=6 GATEWAY_RUNS=50 GATEWAY_SECONDS=4

gateway_pods() { # NAMESPACE COUNT: whether so many are ready, and no more are there
  local pods; pods=$(k -n "$1" get pods -l app.kubernetes.io/component=gateway --no-headers 2>/dev/null)
  [ "$(awk '$2 == "1/1" && $3 == "Running"' <<<"$pods" | wc -l)" = "$2" ] && [ "$(wc -l <<<"$pods")" = "$2" ]
}

gateway_overlay() { # NAMESPACE BACKEND VARIABLE…: $out/gateway, as the documentation says, with images that are here and the criterion
  local namespace=$1 backend=$2; shift 2
  rm -rf "$out/gateway"; mkdir -p "$out/gateway"; cp "$out/checkout.yaml" "$out/gateway/spanscore.yaml"
  echo 'assemble: { expired: 30m }' >>"$out/gateway/spanscore.yaml"
  cat >"$out/gateway/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: $namespace
resources: [$(realpath --relative-to="$out/gateway" "$root/deploy/kustomize/overlays/gateway")]
images:
  - { name: spanscore, newName: localhost/spanscore, newTag: test }
  - { name: docker.io/otel/opentelemetry-collector-contrib, newName: localhost/otelcol, newTag: "1" }
configMapGenerator:
  - name: spanscore
    behavior: replace
    files: [spanscore.yaml]
    options: { disableNameSuffixHash: true }
  - name: spanscore-env
    behavior: replace
    literals: [$(printf '"%s", ' "SPANSCORE_FORWARD__ENDPOINT=http://$backend" "$@")]
YAML
}

router_image() { # localhost/otelcol:1, of the version that the overlay names
  local otelcol; otelcol=$("$here/collector.sh" "$(sed -n 's|.*opentelemetry-collector-contrib:||p' "$root/deploy/kustomize/overlays/gateway/router.yaml")") || fail "no Collector"
  mkdir -p "$out/otelcol"; cp "$otelcol" "$out/otelcol/otelcol"
  printf 'FROM scratch\nCOPY otelcol /otelcol\nUSER 10001\nENTRYPOINT ["/otelcol"]\n' >"$out/otelcol/Dockerfile"
  "$node" image otelcol "$out/otelcol"
}

scenario_gateway() {
  namespace gateway; namespace backend; criterion; router_image
  peer_pod backend sink sink 0.0.0.0:4317
  gateway_overlay gateway "$address:4317"
  echo "components: [$(realpath --relative-to="$out/gateway" "$root/deploy/kustomize/components/gateway-without-journal")]" >>"$out/gateway/kustomization.yaml"
  k apply -k "$out/gateway" --server-side --validate=strict >/dev/null
  k -n gateway scale deployment/spanscore-gateway --replicas=3 >/dev/null
  k -n gateway rollout status deployment/spanscore-gateway deployment/spanscore-router --timeout=180s >/dev/null
  until_true 60 "three pods of the gateway" gateway_pods gateway 3
  # Warm: its Service is known to all, and the router's interval and `assemble.warm_up` have passed.
  sleep 15
  local router agent; router=$(k -n gateway get service spanscore-router -o jsonpath='{.spec.clusterIP}')
  local agents=()
  for agent in $(seq "$GATEWAY_AGENTS"); do
    "$out/peer/peer" agent "$router:4317" "$GATEWAY_RUNS" "$GATEWAY_SECONDS" >"$out/gateway-agent-$agent.log" 2>&1 & agents+=($!)
  done
  sleep 20
  say "rollout of the gateway"
  k -n gateway rollout restart deployment/spanscore-gateway >/dev/null
  k -n gateway rollout status deployment/spanscore-gateway --timeout=180s >/dev/null
  until_true 60 "the old pods' end" gateway_pods gateway 3
  sleep 10; say "3 to 5"
  k -n gateway scale deployment/spanscore-gateway --replicas=5 >/dev/null
  until_true 60 "five pods" gateway_pods gateway 5
  sleep 20; say "5 to 3"
  k -n gateway scale deployment/spanscore-gateway --replicas=3 >/dev/null
  until_true 60 "three pods again" gateway_pods gateway 3
  sleep 20; say "one is deleted"
  k -n gateway delete "$(k -n gateway get pods -l app.kubernetes.io/component=gateway -o name | head -1)" --wait=false >/dev/null
  sleep 5; until_true 60 "its successor" gateway_pods gateway 3
  sleep 10; say "rollout of the router"
  k -n gateway rollout restart deployment/spanscore-router >/dev/null
  k -n gateway rollout status deployment/spanscore-router --timeout=180s >/dev/null
  local failed=0
  for agent in "${agents[@]}"; do wait "$agent" || failed=1; done
  [ "$failed" = 0 ] || fail "an agent could not deliver: $(tail -n 2 "$out"/gateway-agent-*.log)"
  # The last ones settle, and their scores are sent.
  sleep 25
  k -n backend logs sink >"$out/arrived.jsonl"
  cat "$out"/gateway-agent-*.log | sed -n 's/.* is trace //p' >"$out/runs.txt"
  python3 "$here/arrived.py" gateway "$out/arrived.jsonl" checkout "$out/runs.txt"
}
