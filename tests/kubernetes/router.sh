#!/usr/bin/env bash
# The router's configurations with real Collectors: the recorded sessions of all frameworks, spans and log records, through a Collector to three
# replicas. Every verdict must be given by some replica, and none may be wrong.
#
#   router.sh [BINARY]     the spanscore that judges; target/release or target/debug if not given
#
# Does not prove what happens when the replicas change; tests/it/replicas and `on-node.sh gateway` try that.
. "$(dirname "$0")/lib.sh"
spanscore=${1:-}
for built in "$root/target/release/spanscore" "$root/target/debug/spanscore"; do
  [ -n "$spanscore" ] || [ ! -x "$built" ] || spanscore=$built
done
[ -n "$spanscore" ] || fail "no spanscore to judge with: build it, or name it"
packages python3:python3 zstd:zstd ip:iproute2 unshare:util-linux || { skip "the router: something is missing that it needs"; exit 0; }
[ "$(id -u)" = 0 ] || { skip "the router: needs root for a network of its own"; exit 0; }

overlay=$root/deploy/kustomize/overlays/gateway
named=$(sed -n 's|.*opentelemetry-collector-contrib:||p' "$overlay/router.yaml")
try() { # WHAT VERSION CONFIGURATION: the line of router.py
  local otelcol; otelcol=$("$here/collector.sh" "$2") || { skip "the router with Collector $2, which could not be built"; return 1; }
  line=$(unshare --net --mount --fork --kill-child timeout 300 python3 "$here/router.py" "$otelcol" "$3" "$spanscore" "$root/tests/captures") || fail "$1"
  say "$1, Collector $2: $line"
}
all_right() { [[ $line == *'"missing": 0, "wrong": 0, "half": 0}' ]]; }

if try "by trace id" "$named" "$overlay/router-config.yaml"; then
  all_right || fail "verdicts are missing or wrong"
fi
if try "by trace id" 0.160.0 "$overlay/router-config.yaml"; then
  # The reason why the overlay names an older version. Once this fails, it may name a newer one.
  ! all_right || fail "this version places log records as it places spans: name it in the overlay"
fi
# What the documentation says for newer ones.
grep -q 'routing_attributes: \[service.name\]' <<<"$(sed -n '/^```yaml$/,/^```$/{/routing_attributes/p}' "$root/docs/kubernetes.md")" || fail "docs/kubernetes.md says something else"
sed 's/^\( *\)routing_key: traceID$/\1routing_key: attributes\n\1routing_attributes: [service.name]/' "$overlay/router-config.yaml" >"$out/router-by-service.yaml"
if try "by service" 0.160.0 "$out/router-by-service.yaml"; then
  all_right || fail "verdicts are missing or wrong"
fi
