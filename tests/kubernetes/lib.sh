# Shared by the scripts beside it; sourced, not run. What each needs is installed on the way: programs built from Go modules and a Python
# environment go to $CACHE, packages come from apt where we are root on a Debian. What cannot be installed is reported as skipped, and counted.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/target/kubernetes
CACHE=${TEST_KUBERNETES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spanscore-kubernetes}
# The folder of Kubernetes' own programs; those that are missing are built into it (node.sh lists them).
NODE_BIN=${TEST_KUBERNETES_NODE_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/kube-node/bin}
mkdir -p "$out" "$CACHE/bin"
export PATH=$NODE_BIN:$CACHE/bin:$PATH

HELM_VERSION=3.22.0
KUSTOMIZE_VERSION=5.7.1
KUBERNETES_VALIDATE_VERSION=1.37.0

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() { say "FAILED: $*"; exit 1; }
# A check that could not run is reported at once, and again at the end by `run`.
skip() { printf '\n!!! SKIPPED: %s\n\n' "$*" >&2; printf '%s\n' "$*" >>"$out/skipped"; }
seconds() { awk -v from="$1" -v to="$(date +%s.%N)" 'BEGIN { printf "%.1f", to - from }'; }

packages() { # COMMAND:PACKAGE…: whether all commands are there, by apt if need be
  local missing=() pair
  for pair in "$@"; do command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}"); done
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

install_packages() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { say "missing: $*, and only root can install packages"; return 1; }
  say "installing $*"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null || { say "cannot install $*"; return 1; }
}

go_program() { # NAME PACKAGE@VERSION: whether the program is there, built into the cache if need be
  command -v "$1" >/dev/null && return 0
  command -v go >/dev/null || { say "missing: $1, and go to build it"; return 1; }
  say "building $1"
  GOBIN=$CACHE/bin go install "$2"
}

python_with() { # REQUIREMENT…: makes sure that $python has them
  python=$CACHE/python/bin/python
  [ -x "$python" ] || python3 -m venv "$CACHE/python" || return 1
  "$python" -m pip install -q --disable-pip-version-check "$@"
}

kustomize_build() { # FOLDER
  if command -v kustomize >/dev/null; then kustomize build "$1"; else kubectl kustomize "$1"; fi
}
