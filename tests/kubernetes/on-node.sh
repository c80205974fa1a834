#!/usr/bin/env bash
# Everything in deploy/ on a real node: on-node.sh [SCENARIO…]
#
#   jobs        a Job with the native sidecar where the restricted profile is enforced: spans and scores complete and once, Complete within 5 s
#   pod-end     a pod is deleted in the middle of a run: the sidecar takes what the agent still sends, and judges it in full
#   kill        SIGKILL of the sidecar: it is restarted, the agent's exporter recovers, the trace it touched is incomplete
#   fallback    a Job without native sidecars, whose agent ends the sidecar, as the documentation says
#   reload      an edit of the ConfigMap is loaded once and without a restart, a broken one keeps what was in force
#   criteria    a ConfigMap that appears after the pod is read; with a mistake in it, a new pod starts, forwards and judges by what is sound
#   memory      an overload within 128Mi: refusals, and nobody is killed
#   overlays    every overlay and component is taken by the API server, strictly; what has its images here runs
#   inject      a pod of a labelled namespace gets the sidecar, whatever created it, and its agent's run is judged; opting out; a pod
#               that cannot be judged runs, and the log or an annotation gives the reason
#   resize      the memory limit of a running sidecar is lowered and raised under load: its shares follow, nobody is killed
#   gateway     three pods behind the router, while agents run: rollout, 3 to 5 to 3, deletion, rollout of the router; no verdict is wrong
#   journal     a sidecar and a gateway on volumes are killed, deleted, rolled and scaled in while their backend is away: nothing acknowledged is lost
#   docs        every block of docs/kubernetes.md, word for word, but for the images
#   charts      helm install, upgrade and uninstall with every ci values file, and a chart that takes the sidecar from ours
#
# Needs the image of image.sh. Starts the node unless it is up, and ends it only if it started it.
# Does not prove: NetworkPolicies (not enforced here), what the autoscaler does.
. "$(dirname "$0")/lib.sh"
. "$here/gateway.sh"
. "$here/journal.sh"
node=$here/node.sh
k() { "$node" kubectl "$@"; }
scenarios=("$@"); [ $# -gt 0 ] || scenarios=(jobs pod-end kill memory fallback overlays inject docs charts reload criteria resize journal gateway)
sent=$out/sent.jsonl
host_sink=127.0.0.1:34317
MAX_SECONDS_TO_COMPLETE=5

[ -f "$out/spanscore.tar" ] || fail "no image: run image.sh first"
spanscore=$out/image/spanscore
packages python3:python3 go:golang-go || fail "the peer is written in Go"
begun=$(date +%s.%N)
started=0
"$node" kubectl get --raw /readyz >/dev/null 2>&1 || { "$node" up; started=1; }
finish() { local code=$?; kill ${sink_pid:-} ${load_pid:-} 2>/dev/null || true; [ "$started" = 0 ] || "$node" down; exit "$code"; }
trap finish EXIT
"$node" load "$out/spanscore.tar"
mkdir -p "$out/peer"; cp "$here/peer/Dockerfile" "$out/peer/"
(cd "$here/peer" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$out/peer/peer" .)
"$node" image peer "$out/peer"

until_true() { # SECONDS WHAT COMMAND…
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do [ "$SECONDS" -lt "$end" ] || fail "$what: not within the time"; sleep 0.2; done
}

contains() { # PATTERN COMMAND…: whether what the command prints has it. Never `COMMAND | grep -q`, which ends a command that goes on printing
  local pattern=$1 printed; shift
  printed=$("$@") && grep -q -- "$pattern" <<<"$printed"
}

namespace() { # NAME: a new one, in which only restricted pods may be
  k delete namespace "$1" --ignore-not-found --wait --timeout=120s >/dev/null
  made+=("$1")
  k create namespace "$1" >/dev/null
  k label namespace "$1" pod-security.kubernetes.io/enforce=restricted pod-security.kubernetes.io/enforce-version=latest >/dev/null
  until_true 30 "its service account" service_account_is_there "$1"
}
service_account_is_there() { k -n "$1" get serviceaccount default >/dev/null 2>&1; }

peer_pod() { # NAMESPACE NAME ARGUMENT…: a pod of the peer, and its address in $address
  local namespace=$1 name=$2; shift 2
  k -n "$namespace" apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: { name: $name }
spec:
  terminationGracePeriodSeconds: 1
  securityContext: { runAsNonRoot: true, seccompProfile: { type: RuntimeDefault } }
  containers:
    - name: peer
      image: localhost/peer:1
      imagePullPolicy: Never
      args: [$(printf '"%s", ' "$@")]
      readinessProbe: { tcpSocket: { port: 4317 }, periodSeconds: 1 }
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
YAML
  k -n "$namespace" wait --for=condition=Ready "pod/$name" --timeout=60s >/dev/null
  address=$(k -n "$namespace" get pod "$name" -o jsonpath='{.status.podIP}')
}

settings() { # NAMESPACE FILE VARIABLE…: the sidecar's two ConfigMaps
  local namespace=$1 file=$2; shift 2
  k -n "$namespace" create configmap spanscore --from-file="spanscore.yaml=$file" >/dev/null
  k -n "$namespace" create configmap spanscore-env "${@/#/--from-literal=}" >/dev/null
}

sidecar_status() { # NAMESPACE LABELS JSONPATH
  k -n "$1" get pods -l "$2" -o jsonpath="{.items[0].status.initContainerStatuses[?(@.name=='spanscore')]$3}"
}

metric() { # NAMESPACE POD SERIES: its value, 0 if there is none
  k get --raw "/api/v1/namespaces/$1/pods/$2:13133/proxy/metrics" | awk -v series="$3" '$1 == series { value = $2 } END { print value + 0 }'
}
metric_is() { [ "$(metric "$1" "$2" "$3")" = "$4" ]; }

complete() { # NAMESPACE JOB: how many seconds after its agent's last line in $took; the sidecar ended well
  k -n "$1" wait --for=condition=complete "job/$2" --timeout=120s >/dev/null
  local completed ended code
  completed=$(date +%s.%N)
  ended=$(k -n "$1" logs "job/$2" -c agent | sed -n 's/^ended //p')
  took=$(awk -v from="$ended" -v to="$completed" 'BEGIN { printf "%.1f", to - from }')
  code=$(sidecar_status "$1" "job-name=$2" .state.terminated.exitCode)
  [ "$code" = 0 ] || { k -n "$1" logs "job/$2" -c spanscore --tail=20 >&2; fail "the sidecar of $2 ended with '$code'"; }
  say "job $2: Complete $took s after its agent's end, sidecar ended with 0"
}

# === scenarios

scenario_jobs() {
  namespace agents; namespace backend
  # The sink's output for the recording when it is sent there directly.
  "$out/peer/peer" sink "$host_sink" >"$sent" & sink_pid=$!
  until_true 10 "a sink on this machine" bash -c "exec 3<>/dev/tcp/${host_sink/:/\/}" 2>/dev/null
  "$out/peer/peer" send "$host_sink" "$root"/examples/recording/*.pb 2>/dev/null >/dev/null
  kill "$sink_pid"; sink_pid=
  "$spanscore" replay --config "$root/examples/demo.yaml" --format jsonl --exit-zero "$root"/examples/recording/*.pb >"$out/evaluations.jsonl"

  k -n agents create configmap recording $(printf -- '--from-file=%s ' "$root"/examples/recording/*.pb) >/dev/null
  local round times=()
  for round in 1 2 3; do
    peer_pod backend "sink-$round" sink 0.0.0.0:4317
    k -n agents delete job --all --wait >/dev/null; k -n agents delete configmap spanscore spanscore-env --ignore-not-found >/dev/null
    settings agents "$root/examples/demo.yaml" "SPANSCORE_FORWARD__ENDPOINT=http://$address:4317"
    k -n agents apply -k "$here/overlays/job" --server-side >/dev/null
    complete agents recorded
    times+=("$took")
    k -n backend logs "sink-$round" >"$out/arrived.jsonl"
    python3 "$here/arrived.py" all "$sent" "$out/arrived.jsonl" "$out/evaluations.jsonl"
  done
  # Most of it is Kubernetes' own: without any sidecar it is 2 to 4 s on two busy cores. The median, since a shared machine is slow at times.
  took=$(printf '%s\n' "${times[@]}" | sort -n | sed -n 2p)
  awk -v took="$took" -v most="$MAX_SECONDS_TO_COMPLETE" 'BEGIN { exit !(took <= most) }' || fail "the Jobs were Complete after ${times[*]} s"
}

runs_of() { # NAMESPACE JOB: the traces of its runs
  k -n "$1" logs "job/$2" -c agent | sed -n 's/.* is trace //p'
}

criterion() {
  cat >"$out/checkout.yaml" <<YAML
criteria:
  - name: checkout
    evaluate:
      tool_call_order: { tool_calls_order: [validate_user, create_order], strict: true }
YAML
}

begin_sdk_job() { # NAMESPACE: until its first run is over
  namespace "$1"; namespace backend; criterion
  peer_pod backend sink sink 0.0.0.0:4317
  settings "$1" "$out/checkout.yaml" "SPANSCORE_FORWARD__ENDPOINT=http://$address:4317" SPANSCORE_ASSEMBLE__SETTLE=1s
  kustomize_build "$here/overlays/job" | k -n "$1" apply --server-side -f - >/dev/null
  k -n "$1" delete job recorded flood --wait >/dev/null
  k -n "$1" patch job sdk --type=merge -p '{"spec":{"suspend":false}}' >/dev/null
  until_true 90 "the agent's first run" said "$1" sdk "run 1 of 3 is"
}
said() { contains "$3" k -n "$1" logs "job/$2" -c agent 2>/dev/null; }

scenario_pod_end() {
  begin_sdk_job ending
  local pod; pod=$(k -n ending get pods -l job-name=sdk -o name)
  k -n ending logs -f "$pod" -c spanscore >"$out/sidecar.log" & local following=$!
  k -n ending logs -f "$pod" -c agent >"$out/agent.log" 2>&1 & local following_agent=$!
  sleep 2
  # In the middle of the second run, which the agent finishes.
  k -n ending delete "$pod" --wait --timeout=60s >/dev/null
  wait "$following" "$following_agent" || true
  grep -q '"draining: ' "$out/sidecar.log" || fail "the sidecar was not told to drain"
  grep '"stopped' "$out/sidecar.log" | tail -1 >&2
  k -n backend logs sink >"$out/arrived.jsonl"
  local -a traces; mapfile -t traces < <(sed -n 's/.* is trace //p' "$out/agent.log")
  [ ${#traces[@]} = 2 ] || fail "the agent finished ${#traces[@]} runs"
  python3 "$here/arrived.py" runs "$out/arrived.jsonl" checkout "${traces[0]}=root_ended:pass" "${traces[1]}=root_ended:pass"
}

scenario_kill() {
  begin_sdk_job killed
  until_true 30 "the second run's first call" said killed sdk "run 2 of 3 called validate_user"
  # The exporter's batch.
  sleep 0.5
  local id; id=$(sidecar_status killed job-name=sdk .containerID)
  "$node" ctr task kill --signal SIGKILL "${id#containerd://}"
  complete killed sdk
  local restarts; restarts=$(sidecar_status killed job-name=sdk .restartCount)
  [ "$restarts" = 1 ] || fail "the sidecar was restarted '$restarts' times"
  k -n backend logs sink >"$out/arrived.jsonl"
  local -a traces; mapfile -t traces < <(runs_of killed sdk)
  # Only certain verdicts are given: as far as is known the tools were not called in this order, but a first call may be missing.
  python3 "$here/arrived.py" runs "$out/arrived.jsonl" checkout "${traces[0]}=root_ended:pass" "${traces[1]}=incomplete:not_evaluated" "${traces[2]}=root_ended:pass"
}

scenario_fallback() {
  namespace fallback
  k -n fallback create configmap example-agent --from-file="$root/deploy/kustomize/base/agent.sh" >/dev/null
  k -n fallback create configmap spanscore --from-file="$root/deploy/kustomize/base/spanscore.yaml" >/dev/null
  k -n fallback apply -f - >/dev/null <<'YAML'
apiVersion: batch/v1
kind: Job
metadata: { name: fallback }
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      shareProcessNamespace: true
      securityContext: { runAsNonRoot: true, runAsUser: 65532, seccompProfile: { type: RuntimeDefault } }
      containers:
        - name: agent
          image: localhost/busybox:1
          imagePullPolicy: Never
          command: [/bin/sh, -c, "until wget -q -O /dev/null http://127.0.0.1:13133/readyz; do sleep 1; done; sh /agent/agent.sh && echo ended $(date +%s) && kill -TERM $(pidof spanscore)"]
          securityContext: &restricted { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
          volumeMounts: [{ name: agent, mountPath: /agent }]
        - name: spanscore
          image: localhost/spanscore:test
          imagePullPolicy: Never
          securityContext: *restricted
          volumeMounts: [{ name: spanscore, mountPath: /etc/spanscore }]
      volumes:
        - { name: agent, configMap: { name: example-agent } }
        - { name: spanscore, configMap: { name: spanscore } }
YAML
  k -n fallback wait --for=condition=complete job/fallback --timeout=90s >/dev/null
  [ "$(k -n fallback logs job/fallback -c spanscore | grep -c '^{"trace_id"')" = 2 ] || fail "the runs were not judged"
  say "a Job with an ordinary container is Complete when its agent ends the sidecar"
}

scenario_memory() {
  # A backend that never answers, then one that is slow.
  local backend
  for backend in hold sink; do
    namespace flooded; namespace backend
    peer_pod backend "$backend" "$backend" 0.0.0.0:4317
    settings flooded "$root/examples/demo.yaml" "SPANSCORE_FORWARD__ENDPOINT=http://$address:4317" SPANSCORE_SHUTDOWN__DEADLINE=3s
    kustomize_build "$here/overlays/job" | k -n flooded apply --server-side -f - >/dev/null
    k -n flooded delete job recorded sdk --wait >/dev/null
    k -n flooded patch job flood --type=merge -p '{"spec":{"suspend":false}}' >/dev/null
    until_true 60 "the flood's pod" pod_runs flooded job-name=flood
    local id pid peak=0 now answers
    id=$(sidecar_status flooded job-name=flood .containerID)
    pid=$("$node" ctr task ls | awk -v id="${id#containerd://}" '$1 == id { print $2 }')
    while ! said flooded flood '^{'; do
      now=$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null || echo 0)
      [ "${now:-0}" -le "$peak" ] || peak=$now
      [ "$(sidecar_status flooded job-name=flood .restartCount)" = 0 ] || fail "the sidecar was killed: $(sidecar_status flooded job-name=flood .lastState)"
      sleep 0.3
    done
    k -n flooded wait --for=condition=complete job/flood --timeout=120s >/dev/null
    answers=$(k -n flooded logs job/flood -c agent | grep '^{')
    # 5: it could not deliver everything to such a backend within its deadline, and says so.
    [[ "$(sidecar_status flooded job-name=flood .restartCount)$(sidecar_status flooded job-name=flood .state.terminated.exitCode)" =~ ^0[05]$ ]] ||
      fail "the sidecar ended: $(sidecar_status flooded job-name=flood .state)"
    [[ $answers =~ ^\{\"OK\":[0-9]+,\"Unavailable\":[0-9]+\}$ ]] || fail "the agent was answered $answers"
    say "400 MiB within 128Mi before a backend that is a $backend: $answers, at most $((peak / 1024)) MiB resident, not restarted"
  done
}
pod_runs() { [ -n "$(sidecar_status "$1" "$2" .state.running.startedAt 2>/dev/null)" ]; }

crds() { # The least that lets the API server check what we make: kinds with any spec.
  local kind plural group version
  while read -r kind group version <&3; do
    plural=$(tr '[:upper:]' '[:lower:]' <<<"${kind}s")
    k apply -f - >/dev/null <<YAML
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: $plural.$group }
spec:
  group: $group
  names: { kind: $kind, plural: $plural }
  scope: Namespaced
  versions: [{ name: $version, served: true, storage: true, schema: { openAPIV3Schema: { type: object, properties: { spec: { type: object, x-kubernetes-preserve-unknown-fields: true } } } } }]
YAML
    k wait --for=condition=Established "crd/$plural.$group" --timeout=30s >/dev/null
  done 3<<'KINDS'
PodMonitor monitoring.coreos.com v1
ServiceMonitor monitoring.coreos.com v1
PrometheusRule monitoring.coreos.com v1
ScaledObject keda.sh v1alpha1
KINDS
}

scenario_overlays() {
  crds; namespace overlays
  local overlay n=0
  for overlay in "$root"/deploy/kustomize/overlays/* "$here"/overlays/*; do
    k -n overlays apply -k "$overlay" --server-side --validate=strict --dry-run=server >/dev/null || fail "$overlay"
    n=$((n + 1))
  done
  say "$n overlays are taken by the API server, strictly"

  k -n overlays apply -k "$here/overlays/workloads" --server-side --validate=strict >/dev/null
  k -n overlays wait --for=condition=available deployment/deployment --timeout=90s >/dev/null
  k -n overlays rollout status statefulset/statefulset daemonset/daemonset --timeout=90s >/dev/null
  k -n overlays create job --from=cronjob/cronjob from-cron >/dev/null
  until_true 60 "the job's pods" pod_runs overlays job-name=job
  until_true 60 "the cron job's pods" pod_runs overlays job-name=from-cron
  # The agent of this Deployment has a token; the sidecar beside it has none.
  local pod; pod=$(k -n overlays get pods -l app=deployment -o jsonpath='{.items[0].metadata.name}')
  k -n overlays exec "$pod" -c agent -- busybox test -f /var/run/secrets/kubernetes.io/serviceaccount/token || fail "the agent has no token"
  local id process; id=$(sidecar_status overlays app=deployment .containerID)
  process=$("$node" ctr task ls | awk -v id="${id#containerd://}" '$1 == id { print $2 }')
  [ -z "$(ls -A "/proc/$process/root/var/run/secrets/kubernetes.io/serviceaccount")" ] || fail "the sidecar has a token"
  say "Deployment, StatefulSet, DaemonSet, Job and CronJob run with the sidecar, which sees no token"

  # The first page of the documentation.
  k -n overlays apply -k "$here/overlays/print" --server-side --validate=strict >/dev/null
  k -n overlays wait --for=condition=complete job/example-agent --timeout=60s >/dev/null
  k -n overlays logs job/example-agent -c spanscore | grep '^{"trace_id"' >"$out/printed.jsonl"
  [ "$(sed 's/.*"label":"\([a-z]*\)".*/\1/' "$out/printed.jsonl" | sort | tr '\n' ' ')" = "fail pass " ] || fail "the example printed: $(cat "$out/printed.jsonl")"
  say "the example agent's runs were judged: one passed, one failed"

  # The gateway, without its router, whose image is not here.
  kustomize_build "$here/overlays/components" | sed 's|image: spanscore:.*|image: localhost/spanscore:test|' | k -n overlays apply --server-side --validate=strict -f - >/dev/null
  k -n overlays scale deployment/spanscore-router --replicas=0 >/dev/null
  k -n overlays rollout status deployment/spanscore-gateway --timeout=90s >/dev/null
  say "the gateway runs, with its autoscaler, budget, policies and monitors"
}

injected() { # POD JSONPATH: of the pod as the API server would make it
  k -n inject create --dry-run=server -f - -o jsonpath="$2" <<<"$1"
}

agent_pod() { # METADATA ENV: a pod that the restricted profile takes
  cat <<YAML
apiVersion: v1
kind: Pod
metadata: { name: agent, $1 }
spec:
  securityContext: { runAsNonRoot: true, runAsUser: 65534, seccompProfile: { type: RuntimeDefault } }
  containers:
    - name: agent
      image: localhost/busybox:1
      imagePullPolicy: Never
      command: [/bin/sh, -c, "trap exit TERM; sleep 3600 & wait"]
      env: [$2]
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
YAML
}

scenario_inject() {
  namespace inject
  kustomize_build "$root/deploy/kustomize/inject/v1beta1" | sed "s|'spanscore:0.1.0'|'localhost/spanscore:test'|; s|failurePolicy: Ignore|failurePolicy: Fail|" | k apply -f - >/dev/null
  [ "$(injected "$(agent_pod '' '')" '{.spec.initContainers[*].name}')" = "" ] || fail "a pod that nobody labelled has the sidecar"
  k label namespace inject spanscore/inject=on >/dev/null
  policy_is_known() { [ "$(injected "$(agent_pod '' '')" '{.spec.initContainers[*].name}')" = spanscore ]; }
  until_true 30 "the policy" policy_is_known
  local metadata
  for metadata in 'labels: { spanscore/sidecar: "off" }' 'labels: { spanscore/inject: "off" }'; do
    [ "$(injected "$(agent_pod "$metadata" '')" '{.spec.initContainers[*].name}')" = "" ] || fail "a pod that opts out has the sidecar: $metadata"
  done
  # One that has a container of our name: it runs, and an annotation says why there is no sidecar.
  local namesake; namesake=$(agent_pod '' '' | sed 's/- name: agent/- name: spanscore/')
  [ "$(injected "$namesake" '{.spec.initContainers[*].name}')" = "" ] || fail "a container of the same name"
  k -n inject apply -f - >/dev/null <<<"$namesake"
  k -n inject wait --for=condition=Ready pod/agent --timeout=60s >/dev/null
  contains 'spanscore/not-injected: a container of this pod is named spanscore already' k -n inject describe pod agent || fail "nothing says why there is no sidecar"
  k -n inject delete pod agent --wait --grace-period=1 >/dev/null
  metadata='labels: { app.kubernetes.io/name: shop }'
  [ "$(injected "$(agent_pod "$metadata" '')" '{.spec.volumes[?(@.name=="spanscore")].configMap.name}')" = shop-spanscore ] || fail "the ConfigMap is not named after the workload"
  [ "$(injected "$(agent_pod "$metadata" '')" '{.spec.containers[0].env[0].value}')" = http://127.0.0.1:4318 ] || fail "the agent has no endpoint"
  [ "$(injected "$(agent_pod "$metadata" '{ name: OTEL_EXPORTER_OTLP_PROTOCOL, value: grpc }')" '{.spec.containers[0].env[1].value}')" = http://127.0.0.1:4317 ] || fail "an agent with gRPC has no endpoint"
  metadata='annotations: { spanscore/config: other, spanscore/memory-limit: 256Mi, spanscore/cpu-request: 50m }'
  [ "$(injected "$(agent_pod "$metadata" '')" '{.spec.volumes[?(@.name=="spanscore")].configMap.name} {.spec.initContainers[0].resources.limits.memory} {.spec.initContainers[0].resources.requests.cpu}')" = "other 256Mi 50m" ] || fail "annotations are not read"

  # The SDKs' variable for spans alone wins over the one that is set here.
  [ "$(injected "$(agent_pod "$metadata" '{ name: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, value: "https://collector/v1/traces" }')" '{.spec.initContainers[0].env[?(@.name=="SENDERS_ELSEWHERE")].value}')" = "agent: https://collector/v1/traces" ] ||
    fail "the sidecar does not know that spans pass it by"
  [ "$(injected "$(agent_pod "$metadata" '{ name: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, value: "http://localhost:4318/v1/traces" }')" '{.spec.initContainers[0].env[?(@.name=="SENDERS_ELSEWHERE")].value}')" = "" ] ||
    fail "an endpoint of this pod is taken for one elsewhere"

  # A missing ConfigMap and an endpoint elsewhere: the pod starts, and the log says both.
  agent_pod "$metadata" '{ name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://collector:4317" }' | k -n inject apply -f - >/dev/null
  k -n inject wait --for=condition=Ready pod/agent --timeout=60s >/dev/null
  until_true 10 "a line of the log that says that the sidecar is passed by" contains 'agent: http://collector:4317' k -n inject logs agent -c spanscore
  until_true 10 "a line of the log that says that there is no criterion" contains 'n_criteria":0' k -n inject logs agent -c spanscore

  # An agent without any preparation: its run is forwarded and judged by the ConfigMap of its name.
  namespace backend; criterion
  peer_pod backend sink sink 0.0.0.0:4317
  k -n inject create configmap shop-spanscore --from-file="spanscore.yaml=$out/checkout.yaml" >/dev/null
  k -n inject create configmap shop-spanscore-env "--from-literal=SPANSCORE_FORWARD__ENDPOINT=http://$address:4317" >/dev/null
  k -n inject apply -f - >/dev/null <<'YAML'
apiVersion: batch/v1
kind: Job
metadata: { name: shop }
spec:
  backoffLimit: 0
  template:
    metadata: { labels: { app.kubernetes.io/name: shop } }
    spec:
      restartPolicy: Never
      securityContext: { runAsNonRoot: true, runAsUser: 65534, seccompProfile: { type: RuntimeDefault } }
      containers:
        - name: agent
          image: localhost/peer:1
          imagePullPolicy: Never
          args: [agent, "127.0.0.1:4317", "2", "1"]
          securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
YAML
  complete inject shop
  k -n backend logs sink >"$out/arrived.jsonl"
  local -a traces; mapfile -t traces < <(runs_of inject shop)
  python3 "$here/arrived.py" runs "$out/arrived.jsonl" checkout "${traces[0]}=root_ended:pass" "${traces[1]}=root_ended:pass"

  # A cluster that does not know the policy: this one has no v1. The command says so, and nothing has changed.
  local answer; ! answer=$(k apply -k "$root/deploy/kustomize/inject/v1" 2>&1) || fail "a version that the cluster does not know is applied"
  grep -q 'no matches for kind "MutatingAdmissionPolicy"' <<<"$answer" || fail "a cluster without the feature answers: $answer"
  kustomize_build "$root/deploy/kustomize/inject/v1beta1" | k delete -f - >/dev/null
  contains spanscore k -n inject get pod agent -o jsonpath='{.spec.initContainers[*].name}' || fail "deleting the policy changed a pod"
  say "pods of a labelled namespace get the sidecar, and those that opt out do not"
}

shared_memory() { metric resized "$1" spanscore_memory_shared_bytes; }
shares_memory() { [ "$(shared_memory "$1")" != 0 ]; }
shared_memory_is_not() { local now; now=$(shared_memory "$1"); [ "$now" != 0 ] && [ "$now" != "$2" ]; }

scenario_resize() {
  namespace resized; namespace backend
  peer_pod backend hold hold 0.0.0.0:4317
  settings resized "$root/examples/demo.yaml" "SPANSCORE_FORWARD__ENDPOINT=http://$address:4317" SPANSCORE_SHUTDOWN__DEADLINE=3s
  # A flood that does not end by itself.
  kustomize_build "$here/overlays/job" | sed 's/"400"/"1000000"/' | k -n resized apply --server-side -f - >/dev/null
  k -n resized delete job recorded sdk --wait >/dev/null
  k -n resized patch job flood --type=merge -p '{"spec":{"suspend":false}}' >/dev/null
  until_true 60 "the flood's pod" pod_runs resized job-name=flood
  local pod limit before
  pod=$(k -n resized get pods -l job-name=flood -o jsonpath='{.items[0].metadata.name}')
  until_true 30 "its metrics" shares_memory "$pod"
  for limit in 256Mi 160Mi; do
    before=$(shared_memory "$pod")
    k -n resized patch pod "$pod" --subresource resize --type=strategic \
      -p "{\"spec\":{\"initContainers\":[{\"name\":\"spanscore\",\"resources\":{\"limits\":{\"memory\":\"$limit\"}}}]}}" >/dev/null
    until_true 60 "the shares of $limit" shared_memory_is_not "$pod" "$before"
    say "with $limit, $(shared_memory "$pod") bytes are shared out; before, $before"
    [ "$(sidecar_status resized job-name=flood .restartCount)" = 0 ] || fail "the sidecar was restarted: $(sidecar_status resized job-name=flood .lastState)"
  done
  sleep 10
  [ "$(sidecar_status resized job-name=flood .restartCount)" = 0 ] || fail "the sidecar was killed: $(sidecar_status resized job-name=flood .lastState)"
  k -n resized delete job flood --wait=false >/dev/null
  say "the limit went up and down under load, and the sidecar was not restarted"
}

scenario_docs() {
  crds; python_with pyyaml || fail "docs.py needs yaml"
  go_program helm "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION" || fail "no helm"
  router_image
  "$python" "$here/docs.py" "$root" "$out/docs" >&2 || fail "docs/kubernetes.md cannot be followed"
  # The page's commands, word for word.
  follow() { (cd "$out/docs" && kubectl() { k "$@"; } && . "./commands-$1.sh") >"$out/followed.log" || { cat "$out/followed.log" >&2; fail "the commands of docs/kubernetes.md, block $1"; }; }
  follow 1
  [ "$(grep '^{"trace_id"' "$out/followed.log" | sed 's/.*"label":"\([a-z]*\)".*/\1/' | sort | tr '\n' ' ')" = "fail pass " ] || fail "the example printed: $(cat "$out/followed.log")"
  namespace shop
  k -n shop apply -k "$out/docs/shop" --server-side --validate=strict >/dev/null
  k -n shop rollout status deployment/shop --timeout=90s >/dev/null
  follow 2
  k -n shop rollout status deployment/shop --timeout=90s >/dev/null
  [ "$(k -n shop get pods -l app=shop --field-selector=status.phase=Running -o jsonpath='{.items[-1:].spec.initContainers[*].name}')" = spanscore ] || fail "the agent has no sidecar, or two"
  k delete -k "$out/docs/deploy/kustomize/inject/v1beta1" >/dev/null
  namespace observability
  k apply -k "$out/docs/observability" --server-side --validate=strict --dry-run=server >/dev/null
  # The node has no volumes for the journals.
  echo 'components: [../deploy/kustomize/components/gateway-without-journal]' >>"$out/docs/observability/kustomization.yaml"
  k apply -k "$out/docs/observability" --server-side --validate=strict >/dev/null
  k -n observability rollout status deployment/spanscore-gateway deployment/spanscore-router --timeout=180s >/dev/null
  k delete namespace observability --wait --timeout=120s >/dev/null
  namespace charts
  helm --kubeconfig "$("$node" kubeconfig)" --namespace charts install shop "$out/docs/chart" --wait --timeout 120s >"$out/helm.log" 2>&1 || { cat "$out/helm.log" >&2; fail "the chart of the page"; }
  helm --kubeconfig "$("$node" kubeconfig)" --namespace charts uninstall shop --wait >/dev/null
  k delete job example-agent --ignore-not-found >/dev/null; k delete namespace shop --wait=false >/dev/null
  say "every block of docs/kubernetes.md that can be followed here works as it is written"
}

scenario_charts() {
  crds; go_program helm "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION" || fail "no helm"
  namespace charts
  local chart=$root/deploy/helm/spanscore values name
  local helm=(helm --kubeconfig "$("$node" kubeconfig)" --namespace charts)
  k -n charts create configmap our-spanscore --from-file="spanscore.yaml=$root/examples/demo.yaml" >/dev/null
  for values in "$chart"/ci/*-values.yaml; do
    name=$(basename "$values" -values.yaml)
    if [[ $name == judge* || $name == writer ]]; then
      "${helm[@]}" template "$name" "$chart" --kube-version 1.29.0 -f "$values" | k -n charts apply --server-side --validate=strict --dry-run=server -f - >/dev/null || fail "chart with $values"
      say "chart with $name: taken by the API server; there is no broker here"
      continue
    fi
    # The node has no volumes for the journals of a gateway.
    "${helm[@]}" install "$name" "$chart" -f "$values" --set journal.enabled=false --wait --timeout 120s >"$out/helm.log" 2>&1 || { cat "$out/helm.log" >&2; fail "helm install with $values"; }
    "${helm[@]}" upgrade "$name" "$chart" -f "$values" --set journal.enabled=false --set-json 'config.explain={"values":true}' --wait --timeout 120s >"$out/helm.log" 2>&1 || { cat "$out/helm.log" >&2; fail "helm upgrade with $values"; }
    if [ "$name" = gateway ]; then
      # What is reloaded while running rolls no pod; what is read at start does.
      [ "$(k -n charts get deployment gateway-spanscore -o jsonpath='{.metadata.generation}')" = 1 ] || fail "an upgrade of what is reloaded rolled the pods"
      "${helm[@]}" upgrade "$name" "$chart" -f "$values" --set journal.enabled=false --set config.shutdown.quiet=2s --wait --timeout 120s >/dev/null
      [ "$(k -n charts get deployment gateway-spanscore -o jsonpath='{.metadata.generation}')" = 2 ] || fail "an upgrade of what is read at start did not roll the pods"
    fi
    "${helm[@]}" uninstall "$name" --wait >/dev/null
    say "chart with $name: installed, upgraded, uninstalled"
  done
  # A mistake in the configuration stops the installation. The schema knows a misspelt key; what only spanscore knows, the pod that looked says.
  ! "${helm[@]}" install wrong "$chart" -f "$chart/ci/sidecar-values.yaml" --set-json 'config.criteria=[{"name":"x","evaluate":{"tool_call_ordr":{}}}]' >"$out/helm.log" 2>&1 || fail "a misspelt configuration is installed"
  grep -q "additional properties 'tool_call_ordr' not allowed" "$out/helm.log" || fail "the schema does not say what is wrong: $(cat "$out/helm.log")"
  ! "${helm[@]}" install wrong "$chart" -f "$chart/ci/sidecar-values.yaml" --timeout 60s --set config.forward.endpoint=backend:4317 >"$out/helm.log" 2>&1 || fail "a wrong configuration is installed"
  contains '`backend:4317` has no scheme' k -n charts logs wrong-spanscore-check || fail "the check does not say what is wrong"
  ! k -n charts get configmap wrong-spanscore >/dev/null 2>&1 || fail "a refused installation left its ConfigMap"
  "${helm[@]}" uninstall wrong >/dev/null 2>&1 || true
  k -n charts delete pod wrong-spanscore-check --ignore-not-found >/dev/null
  say "a wrong configuration is not installed, and the check says where the mistake is"
  local agent_chart=$out/agent-chart; rm -rf "$agent_chart"; cp -r "$here/agent-chart" "$agent_chart"; mkdir "$agent_chart/charts"; cp -r "$chart" "$agent_chart/charts/"
  "${helm[@]}" install agent "$agent_chart" --wait --timeout 120s >/dev/null
  "${helm[@]}" uninstall agent --wait >/dev/null
  say "a chart that takes the sidecar from ours: installed, uninstalled"
}

judged_by() { # POD CRITERION: runs the example agent in the pod; the last judgement is by this criterion
  k -n reloaded exec "$1" -c agent -- /bin/sh -c "$(cat "$root/deploy/kustomize/base/agent.sh")" >/dev/null
  until_true 30 "a judgement by $2" last_judgement_is "$1" "$2"
}
last_judgement_is() { contains "\"criterion\":\"$2\"" last_judgement "$1"; }
last_judgement() { k -n reloaded logs "$1" -c spanscore | grep '^{"trace_id"' | tail -n 1; }

scenario_reload() {
  namespace reloaded; criterion
  settings reloaded "$out/checkout.yaml" SPANSCORE_ASSEMBLE__SETTLE=500ms
  k -n reloaded apply -k "$here/overlays/workloads" --server-side >/dev/null
  k -n reloaded wait --for=condition=available deployment/deployment --timeout=90s >/dev/null
  local pod applied='spanscore_config_reloads_total{result="applied"}' edited
  pod=$(k -n reloaded get pods -l app=deployment -o jsonpath='{.items[0].metadata.name}')
  judged_by "$pod" checkout

  sed -i 's/name: checkout/name: edited/' "$out/checkout.yaml"
  edited=$(date +%s.%N)
  k -n reloaded create configmap spanscore --from-file="spanscore.yaml=$out/checkout.yaml" --dry-run=client -o yaml | k -n reloaded replace -f - >/dev/null
  until_true 90 "the edit" metric_is reloaded "$pod" "$applied" 1
  say "an edit was in force after $(seconds "$edited") s"
  judged_by "$pod" edited

  k -n reloaded patch configmap spanscore --type=merge -p '{"data":{"spanscore.yaml":"criteria: [{ name: broken, evaluate: { tool_call_ordr: {} } }]"}}' >/dev/null
  until_true 90 "the broken edit" metric_is reloaded "$pod" spanscore_config_reload_failed 1
  judged_by "$pod" edited
  metric_is reloaded "$pod" "$applied" 1 || fail "the edit was loaded $(metric reloaded "$pod" "$applied") times"
  [ "$(sidecar_status reloaded app=deployment .restartCount)" = 0 ] || fail "the sidecar was restarted"
  say "one edit was loaded once and without a restart, a broken one kept what was in force"
}

scenario_criteria() {
  namespace criteria; namespace backend; criterion
  peer_pod backend sink sink 0.0.0.0:4317
  k -n criteria create configmap spanscore-env "--from-literal=SPANSCORE_FORWARD__ENDPOINT=http://$address:4317" --from-literal=SPANSCORE_ASSEMBLE__SETTLE=500ms >/dev/null
  k -n criteria apply -k "$here/overlays/workloads" --server-side >/dev/null
  k -n criteria wait --for=condition=available deployment/deployment --timeout=90s >/dev/null
  local pod created
  pod=$(k -n criteria get pods -l app=deployment -o jsonpath='{.items[0].metadata.name}')
  created=$(date +%s.%N)
  k -n criteria create configmap spanscore --from-file="spanscore.yaml=$out/checkout.yaml" >/dev/null
  until_true 90 "the ConfigMap that appears" metric_is criteria "$pod" 'spanscore_config_reloads_total{result="applied"}' 1
  say "a ConfigMap that appeared after the pod was in force after $(seconds "$created") s"

  echo '  - { name: broken, evaluate: { tool_call_ordr: {} } }' >>"$out/checkout.yaml"
  k -n criteria create configmap spanscore --from-file="spanscore.yaml=$out/checkout.yaml" --dry-run=client -o yaml | k -n criteria replace -f - >/dev/null
  until_true 90 "the mistake" metric_is criteria "$pod" spanscore_config_reload_failed 1
  k -n criteria delete pod "$pod" --wait --timeout=90s >/dev/null
  k -n criteria rollout status deployment/deployment --timeout=90s >/dev/null
  pod=$(k -n criteria get pods -l app=deployment -o jsonpath='{.items[0].metadata.name}')
  metric_is criteria "$pod" spanscore_config_reload_failed 1 || fail "the new pod does not report the mistake as a metric"
  until_true 10 "a line of the new pod's log that names the mistake" contains tool_call_ordr k -n criteria logs "$pod" -c spanscore
  k -n criteria exec "$pod" -c agent -- /bin/sh -c "$(cat "$root/deploy/kustomize/base/agent.sh")" >/dev/null
  until_true 30 "a score by the sound criterion" contains '"evaluation checkout"' k -n backend logs sink
  contains '"execute_tool validate_user"' k -n backend logs sink || fail "the new pod does not forward"
  [ "$(sidecar_status criteria app=deployment .restartCount)" = 0 ] || fail "the new sidecar was restarted"
  say "a new pod with a mistake in its ConfigMap started, forwarded and judged by what is sound"
}

for scenario in "${scenarios[@]}"; do
  say "=== $scenario"
  made=()
  "scenario_${scenario//-/_}"
  # The next scenario has the node to itself; after a failure everything stays for inspection.
  [ ${#made[@]} = 0 ] || k delete namespace "${made[@]}" --ignore-not-found --wait=false >/dev/null
done
say "all of ${scenarios[*]} in $(seconds "$begun") s"
