#!/usr/bin/env bash
# A Kubernetes of one node on this machine, for the tests beside this script: etcd, API server, controllers, scheduler, kubelet, containerd.
#
#   node.sh build              builds Kubernetes' own programs from their Go modules (minutes), installs the rest from Debian packages
#   node.sh built              whether there is nothing left to build
#   node.sh up                 starts everything and waits until the node is ready (root; builds what is missing)
#   node.sh load FILE          takes an image archive into the node, where `imagePullPolicy: Never` finds it
#   node.sh kubectl ARGUMENT…  kubectl against the node
#   node.sh image NAME FOLDER  builds an image from the Dockerfile of a folder, and loads it as localhost/NAME:1
#   node.sh kubeconfig         tells the path of the kubeconfig
#   node.sh ctr ARGUMENT…      containerd's own client, in the node's namespace
#   node.sh down               ends every process and pod and forgets all state; the built programs stay
#
# Programs are looked for in, and built into, $TEST_KUBERNETES_NODE_BIN; everything else is under $TEST_KUBERNETES_CACHE.
# Servers listen on 127.0.0.1. A pod has a network namespace and an address (10.245.0.0/24) that other pods and this machine reach. Services
# work (kube-proxy), and names.py answers for their names, headless ones too. MutatingAdmissionPolicy (v1beta1) is on. NetworkPolicies are not
# enforced, and pods reach nothing outside this machine. localhost/busybox:1 is there.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=1.35.0
PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
run=$CACHE/node
socket=$run/containerd.sock
kubeconfig=$run/kubeconfig
api=127.0.0.1:26443
pods=10.245.0
services=10.96.0.0/16
etcd=http://127.0.0.1:22379

kube() { kubectl --kubeconfig "$kubeconfig" "$@"; }
containers() { ctr --address "$socket" --namespace k8s.io "$@"; }
buildah_here() { buildah --root "$run/store" --runroot "$run/store-run" --storage-driver vfs "$@"; }
# kubectl may be this machine's own: it is only needed from 1.30 on.
is_built() { local program; for program in "${PROGRAMS[@]}"; do [ -x "$NODE_BIN/$program" ] || { [ "$program" = kubectl ] && command -v kubectl >/dev/null; } || return 1; done; }
alive() { [ -f "$run/$1.pid" ] && kill -0 "$(cat "$run/$1.pid")" 2>/dev/null; }
launch() { local name=$1; shift; "$@" >"$run/$name.log" 2>&1 & echo $! >"$run/$name.pid"; }

wait_for() { # SECONDS WHAT COMMAND…
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { tail -n 5 "$run"/*.log >&2; fail "$what did not come up; the logs are in $run"; }
    sleep 0.3
  done
}

end() { # NAME: asks, then insists
  alive "$1" || return 0
  local pid; pid=$(cat "$run/$1.pid")
  kill "$pid"
  for _ in $(seq 60); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
  kill -9 "$pid" 2>/dev/null || true
}

build() {
  packages etcd:etcd-server containerd:containerd runc:runc buildah:buildah openssl:openssl ip:iproute2 iptables:iptables python3:python3 || exit 1
  [ -x /usr/lib/cni/ptp ] || install_packages containernetworking-plugins || exit 1
  busybox_is_static || install_packages busybox-static || exit 1
  ! is_built || return 0
  command -v go >/dev/null || fail "go is needed to build Kubernetes"
  mkdir -p "$NODE_BIN" "$CACHE/build"
  cd "$CACHE/build"
  # Kubernetes' go.mod replaces its own libraries by folders of its repository; a module that wants its programs must say which versions.
  if [ ! -f go.sum ]; then
    rm -f go.mod; go mod init spanscore.test/kubernetes 2>/dev/null
    local module; module=$(go mod download -json "k8s.io/kubernetes@v$VERSION" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    go mod edit -require "k8s.io/kubernetes@v$VERSION"
    sed -n 's|^\s*\(replace \)\?\(k8s.io/[^ ]*\) => ./staging/.*|\2|p' "$module/go.mod" | while read -r library; do
      go mod edit -replace "$library=$library@v0.${VERSION#1.}"
    done
    install -m 644 "$module/go.sum" go.sum
  fi
  local program
  for program in "${PROGRAMS[@]}"; do
    [ ! -x "$NODE_BIN/$program" ] || continue
    say "building $program $VERSION"
    go build -mod=mod -o "$NODE_BIN/$program" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$VERSION -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${VERSION:2:2}" "k8s.io/kubernetes/cmd/$program"
  done
}

busybox_is_static() { [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1; }

image() { # NAME FOLDER: everything in the folder, whose Dockerfile says what runs
  buildah_here bud --quiet --isolation chroot --signature-policy "$run/policy.json" --format oci -t "localhost/$1:1" -f "$2/Dockerfile" "$2" >/dev/null
  rm -f "$run/$1.tar"
  buildah_here push --quiet --signature-policy "$run/policy.json" "localhost/$1:1" "oci-archive:$run/$1.tar:localhost/$1:1"
  containers image import "$run/$1.tar" >/dev/null
}

images() {
  echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$run/policy.json"
  mkdir -p "$run/pause" "$run/busybox/bin"
  # Holds a pod's namespaces, and does nothing else until it is told to stop.
  cat >"$run/pause/pause.c" <<'C'
#include <signal.h>
#include <unistd.h>
static void leave(int signal) { _exit(signal == SIGTERM ? 0 : 1); }
int main(void) { signal(SIGTERM, leave); signal(SIGINT, leave); for (;;) pause(); }
C
  cc -O1 -static -o "$run/pause/pause" "$run/pause/pause.c"
  printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' >"$run/pause/Dockerfile"
  cp /bin/busybox "$run/busybox/bin/busybox"
  local applet; for applet in sh sleep true; do ln -sf busybox "$run/busybox/bin/$applet"; done
  printf 'FROM scratch\nCOPY bin /bin\nUSER 65534:65534\n' >"$run/busybox/Dockerfile"
  image pause "$run/pause"
  image busybox "$run/busybox"
}

up() {
  [ "$(id -u)" = 0 ] || fail "needs root"
  ! alive kubelet || { say "already up"; return; }
  build; down; mkdir -p "$run/cni" "$run/logs"; cd "$run"
  local begun; begun=$(date +%s.%N)
  openssl genrsa -out accounts.key 2048 2>/dev/null
  openssl rsa -in accounts.key -pubout -out accounts.pub 2>/dev/null
  echo 'test,admin,admin,system:masters' >tokens.csv

  launch etcd etcd --data-dir "$run/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" --listen-peer-urls http://127.0.0.1:22380 \
    --initial-advertise-peer-urls http://127.0.0.1:22380 --initial-cluster default=http://127.0.0.1:22380
  launch apiserver kube-apiserver --etcd-servers "$etcd" --bind-address "${api%:*}" --secure-port "${api#*:}" --cert-dir "$run/certificates" \
    --service-account-key-file accounts.pub --service-account-signing-key-file accounts.key --service-account-issuer https://kubernetes.default.svc \
    --token-auth-file tokens.csv --authorization-mode RBAC --feature-gates MutatingAdmissionPolicy=true \
    --runtime-config admissionregistration.k8s.io/v1beta1=true --service-cluster-ip-range $services --kubelet-preferred-address-types Hostname
  cat >"$kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{ name: node, cluster: { server: "https://$api", insecure-skip-tls-verify: true } }]
users: [{ name: admin, user: { token: test } }]
contexts: [{ name: node, context: { cluster: node, user: admin } }]
current-context: node
YAML
  wait_for 120 "the API server" kube get --raw /readyz
  launch controllers kube-controller-manager --kubeconfig "$kubeconfig" --service-account-private-key-file accounts.key --bind-address 127.0.0.1 --secure-port 26257 --cert-dir "$run/certificates"
  launch scheduler kube-scheduler --kubeconfig "$kubeconfig" --bind-address 127.0.0.1 --secure-port 26259 --cert-dir "$run/certificates"

  # Where lowering a process's oom_score_adj is forbidden (a machine that is itself a container), containers keep the value that they start with.
  cat >containerd.toml <<TOML
version = 2
root = "$run/containerd"
state = "$run/containerd-state"
[grpc]
address = "$socket"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$run/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
TOML
  cat >cni/pods.conflist <<JSON
{ "cniVersion": "0.4.0", "name": "pods", "plugins": [{ "type": "ptp", "ipMasq": false,
  "ipam": { "type": "host-local", "dataDir": "$run/addresses", "ranges": [[{ "subnet": "$pods.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] } }] }
JSON
  launch containerd containerd --config containerd.toml
  wait_for 30 containerd containers version
  images
  cat >kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: 26250
healthzPort: 26248
readOnlyPort: 0
authentication: { anonymous: { enabled: true }, webhook: { enabled: false } }
authorization: { mode: AlwaysAllow }
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
resolvConf: ""
clusterDNS: [$pods.1]
clusterDomain: cluster.local
podLogsDir: $run/logs
containerRuntimeEndpoint: unix://$socket
configMapAndSecretChangeDetectionStrategy: Watch
syncFrequency: 5s
# A disk that is nearly full is no reason to evict a test's pods or to delete its images, which cannot be pulled again.
evictionHard: { memory.available: 50Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%, imagefs.inodesFree: 1% }
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
YAML
  launch kubelet kubelet --config kubelet.yaml --kubeconfig "$kubeconfig" --hostname-override localhost --root-dir "$run/kubelet" --cert-dir "$run/certificates"
  wait_for 90 "the kubelet" kube get node localhost
  cat >proxy.yaml <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 127.0.0.1
healthzBindAddress: 127.0.0.1:26252
metricsBindAddress: 127.0.0.1:26251
clientConnection: { kubeconfig: $kubeconfig }
clusterCIDR: $pods.0/24
hostnameOverride: localhost
mode: iptables
conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s }
YAML
  # A packet to an address that no pod or Service has (any more) must not leave this machine: a host behind the default route may answer.
  ip route replace unreachable "$pods.0/24"
  local chain; for chain in OUTPUT FORWARD; do iptables -I "$chain" -d "$services" -j REJECT; done
  launch proxy kube-proxy --config proxy.yaml
  launch names python3 "$here/names.py" "${api#*:}" "$pods.1"
  kube wait --for=condition=Ready node/localhost --timeout=60s >/dev/null
  wait_for 30 "the default service account" kube get serviceaccount default
  say "Kubernetes $(kube version -o json 2>/dev/null | sed -n '/serverVersion/,$s/.*"gitVersion": "\(.*\)".*/\1/p') is ready after $(seconds "$begun") s"
}

down() {
  ! alive proxy || { end proxy; kube-proxy --cleanup >/dev/null 2>&1 || true; }
  end names; end kubelet; end scheduler; end controllers
  if alive containerd; then
    local container
    for container in $(containers task ls -q); do containers task kill --signal KILL "$container" >/dev/null 2>&1 || true; done
    sleep 0.5
    for container in $(containers container ls -q); do containers task rm --force "$container" >/dev/null 2>&1 || true; done
  fi
  end containerd; end apiserver; end etcd
  # Firewall rules that the kubelet leaves behind, and our own rules and routes.
  local chain table
  for chain in INPUT OUTPUT; do iptables -D "$chain" -j KUBE-FIREWALL 2>/dev/null || true; done
  for chain in OUTPUT FORWARD; do iptables -D "$chain" -d "$services" -j REJECT 2>/dev/null || true; done
  ip route del unreachable "$pods.0/24" 2>/dev/null || true
  for table in filter nat mangle; do
    for chain in KUBE-FIREWALL KUBE-KUBELET-CANARY KUBE-IPTABLES-HINT; do iptables -t "$table" -F "$chain" 2>/dev/null && iptables -t "$table" -X "$chain" || true; done
  done
  awk -v folder="$run/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mounted; do umount -l "$mounted" || true; done
  # Network namespaces of pods that containerd did not delete: only those that our network made.
  local address
  for address in "$run"/addresses/pods/10.*; do
    [ -f "$address" ] || continue
    ip route show "$(basename "$address")" 2>/dev/null | sed -n 's/.*dev \(veth[^ ]*\).*/\1/p' | while read -r device; do ip link delete "$device" || true; done
  done
  rm -rf "$run"
}

case ${1:-} in
  build) build ;;
  built) is_built ;;
  up) up ;;
  load) containers image import "$2" >/dev/null && say "loaded $2" ;;
  image) image "$2" "$3" && say "built and loaded localhost/$2:1" ;;
  kubectl) shift; kube "$@" ;;
  ctr) shift; containers "$@" ;;
  kubeconfig) echo "$kubeconfig" ;;
  down) down ;;
  *) sed -n '2,/^\. /{/^\. /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
