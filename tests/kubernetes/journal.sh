# Sourced by on-node.sh: the journals of a sidecar and of a gateway on volumes, while their backend is away.

# The backend is a process of this machine, at the address by which pods reach the machine: it can be down while its output stays.
BACKEND=10.245.0.1:34318
backend_comes() { "$out/peer/peer" sink "$BACKEND" >>"$out/arrived.jsonl" & sink_pid=$!; until_true 10 "the backend" listens "$BACKEND"; }
backend_goes() { kill "$sink_pid"; wait "$sink_pid" 2>/dev/null || true; sink_pid=; }
listens() { bash -c "exec 3<>/dev/tcp/${1/:/\/}" 2>/dev/null; }

more_than() { [ "$(metric "$1" "$2" "$3")" -gt "$4" ]; }

volumes() { # COUNT: empty ones on this node, which has nobody who would provide them
  k delete persistentvolume -l for=journals --ignore-not-found --wait --timeout=60s >/dev/null
  rm -rf "$out/volumes"
  local n
  for n in $(seq "$1"); do
    mkdir -p "$out/volumes/$n"
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: { name: journals-$n, labels: { for: journals } }
spec:
  capacity: { storage: 8Gi }
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: { path: $out/volumes/$n }
  nodeAffinity: { required: { nodeSelectorTerms: [{ matchExpressions: [{ key: kubernetes.io/hostname, operator: Exists }] }] } }
YAML
  done
}

waits_in() { # CLAIM: what its journal holds, read from this machine
  local path; path=$(k get persistentvolume "$(k -n journals get persistentvolumeclaim "$1" -o jsonpath='{.spec.volumeName}')" -o jsonpath='{.spec.local.path}')
  "$spanscore" journal "$path/journal"
}
nothing_waits_in() { contains ': nothing waits' waits_in "$1" && ! contains ' waits\? (' waits_in "$1"; }
requests_wait_in() { contains ' requests\? waits\? (' waits_in "$1"; }

pod_id() { k -n journals get pod "$1" -o jsonpath='{.metadata.uid}' 2>/dev/null; }
replaced() { # POD ID: whether there is another pod of this name, and it is ready
  local id; id=$(pod_id "$1") && [ "$id" != "$2" ] && [ "$(k -n journals get pod "$1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = True ]
}
gone() { [ -z "$(pod_id "$1")" ]; }

backlog() { # POD: so many requests wait in it that it matters
  until_true 30 "a backlog of $1" more_than journals "$1" 'spanscore_exporter_queue_spans' 60
}

arrived_all() { sed -n 's/^acknowledged //p' "$out/load.log" >"$out/runs.txt"; python3 "$here/arrived.py" kept "$out/arrived.jsonl" checkout "$out/runs.txt" >"$out/kept.txt" 2>&1; }

journal_of_a_sidecar() {
  namespace sidecars; criterion; : >"$out/arrived.jsonl"
  settings sidecars "$out/checkout.yaml" "SPANSCORE_FORWARD__ENDPOINT=http://$BACKEND" SPANSCORE_ASSEMBLE__SETTLE=1s
  kustomize_build "$here/overlays/job-journal" | k -n sidecars apply --server-side -f - >/dev/null
  k -n sidecars delete job recorded flood --wait >/dev/null
  k -n sidecars patch job sdk --type=merge -p '{"spec":{"suspend":false}}' >/dev/null
  until_true 120 "the second run's first call" said sidecars sdk "run 2 of 3 called validate_user"
  # The exporter's batch.
  sleep 0.5
  local id pod; id=$(sidecar_status sidecars job-name=sdk .containerID)
  pod=$(k -n sidecars get pods -l job-name=sdk -o jsonpath='{.items[0].metadata.name}')
  "$node" ctr task kill --signal SIGKILL "${id#containerd://}"
  # Three spans of the first run, and a call of the second unless it was not acknowledged yet.
  until_true 30 "what the journal has kept" more_than sidecars "$pod" spanscore_journal_restored_spans_total 2
  backend_comes
  complete sidecars sdk
  local restarts; restarts=$(sidecar_status sidecars job-name=sdk .restartCount)
  [ "$restarts" = 1 ] || fail "the sidecar was restarted '$restarts' times"
  backend_goes
  local -a traces; mapfile -t traces < <(runs_of sidecars sdk)
  [ ${#traces[@]} = 3 ] || fail "the agent finished ${#traces[@]} runs"
  # The trace that was open at the kill, too: the journal proves that no span of it was missed.
  python3 "$here/arrived.py" runs "$out/arrived.jsonl" checkout "${traces[0]}=root_ended:pass" "${traces[1]}=root_ended:pass" "${traces[2]}=root_ended:pass"
  printf '%s\n' "${traces[@]}" >"$out/runs.txt"
  python3 "$here/arrived.py" kept "$out/arrived.jsonl" checkout "$out/runs.txt"
  say "a sidecar that was killed while its backend was away delivered all that it had acknowledged"
}

journal_of_a_gateway() {
  namespace journals; criterion; volumes 2; : >"$out/arrived.jsonl"
  gateway_overlay journals "$BACKEND" SPANSCORE_SHUTDOWN__DEADLINE=5s
  echo 'replicas: [{ name: spanscore-router, count: 0 }]' >>"$out/gateway/kustomization.yaml"
  k apply -k "$out/gateway" --server-side --validate=strict >/dev/null
  # Only the autoscaler sets the number of pods.
  until_true 120 "two pods of the StatefulSet, by its autoscaler" gateway_pods journals 2
  k -n journals delete horizontalpodautoscaler spanscore-gateway >/dev/null
  k -n journals create service clusterip load --tcp=4317:4317 >/dev/null
  k -n journals patch service load --type=merge -p '{"spec":{"selector":{"app":null,"app.kubernetes.io/component":"gateway"}}}' >/dev/null
  local load pod id variables; load=$(k -n journals get service load -o jsonpath='{.spec.clusterIP}')
  until_true 30 "the Service for the load" listens "$load:4317"
  backend_comes
  # Until then no verdict is given, since the pods have changed (`assemble.warm_up`).
  sleep 15
  "$out/peer/peer" load "$load:4317" 40 >"$out/load.log" 2>"$out/load-errors.log" & load_pid=$!
  sleep 5

  backend_goes; backlog spanscore-gateway-0
  id=$(pod_id spanscore-gateway-0)
  k -n journals delete pod spanscore-gateway-0 --grace-period=1 --wait=false >/dev/null
  until_true 120 "the pod's successor" replaced spanscore-gateway-0 "$id"
  more_than journals spanscore-gateway-0 spanscore_journal_restored_spans_total 0 || fail "a deleted pod's journal had nothing to restore"
  say "a pod was deleted, with a second to end: its successor has $(metric journals spanscore-gateway-0 spanscore_journal_restored_spans_total) spans of its journal"

  k -n journals rollout restart statefulset/spanscore-gateway >/dev/null
  k -n journals rollout status statefulset/spanscore-gateway --timeout=180s >/dev/null
  for pod in spanscore-gateway-0 spanscore-gateway-1; do
    more_than journals "$pod" spanscore_journal_restored_spans_total 0 || fail "after the rollout, $pod had nothing to restore"
  done
  say "all pods were replaced while nothing could be delivered"

  # Scaled in with a backlog, and the backend is back in time.
  backlog spanscore-gateway-1
  k -n journals scale statefulset/spanscore-gateway --replicas=1 >/dev/null
  backend_comes
  until_true 60 "the end of the pod that is scaled in" gone spanscore-gateway-1
  nothing_waits_in journal-spanscore-gateway-1 || fail "a pod that was scaled in kept: $(waits_in journal-spanscore-gateway-1)"
  say "a pod that was scaled in had delivered everything when it ended"

  # Not in time: its journal stays, and the documentation says how it is sent.
  k -n journals scale statefulset/spanscore-gateway --replicas=2 >/dev/null
  until_true 60 "the second pod again" gateway_pods journals 2
  backend_goes; backlog spanscore-gateway-1
  k -n journals scale statefulset/spanscore-gateway --replicas=1 >/dev/null
  until_true 60 "the end of the pod that is scaled in" gone spanscore-gateway-1
  requests_wait_in journal-spanscore-gateway-1 || fail "a pod that was scaled in without a backend kept: $(waits_in journal-spanscore-gateway-1)"
  backend_comes
  variables=$(k -n journals get statefulset spanscore-gateway -o jsonpath='{.spec.template.spec.containers[0].envFrom[0].configMapRef.name}')
  documented yaml | sed "s|registry.example.com/spanscore:0.1.0|localhost/spanscore:test|; s|name: spanscore-env }|name: $variables }|" | k -n journals apply --server-side --validate=strict -f - >/dev/null
  k -n journals wait --for=condition=Ready pod/spanscore-journal --timeout=60s >/dev/null
  until_true 60 "what it kept" nothing_waits_in journal-spanscore-gateway-1
  (kubectl() { k -n journals "$@"; }; . <(documented sh)) >"$out/followed.log" 2>&1 || { cat "$out/followed.log" >&2; fail "the commands of docs/durability.md"; }
  contains ': nothing waits' cat "$out/followed.log" || fail "the commands of docs/durability.md say: $(cat "$out/followed.log")"
  ! k -n journals get persistentvolumeclaim journal-spanscore-gateway-1 >/dev/null 2>&1 || fail "the claim is still there"
  say "what a pod could not deliver was sent by a pod with its claim, as docs/durability.md says"

  kill "$load_pid"; wait "$load_pid" || fail "the load ended early: $(tail -n 2 "$out/load-errors.log")"
  load_pid=
  local end=$((SECONDS + 60))
  until arrived_all || [ "$SECONDS" -ge "$end" ]; do sleep 1; done
  arrived_all || { cat "$out/kept.txt" >&2; fail "something that was acknowledged was lost"; }
  backend_goes
  cat "$out/kept.txt"
}

documented() { # LANGUAGE: the block of docs/durability.md that brings a journal back
  sed -n '/^### Bringing a journal back/,/^## /p' "$root/docs/durability.md" | sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/d;p}"
}

scenario_journal() {
  journal_of_a_sidecar
  journal_of_a_gateway
}
