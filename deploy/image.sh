#!/usr/bin/env bash
# Packs a static program as the image that deploy/Dockerfile describes, with buildah, as an OCI archive. Equal programs and
# certificate authorities (those of this machine) give equal bytes.
#   deploy/image.sh PROGRAM ARCHIVE NAME:TAG
set -euo pipefail
program=$(realpath "$1") archive=$(realpath -m "$2") name=$3
cd "$(dirname "$0")/.."
work=$(mktemp -d)
store=(--root "$work/store" --runroot "$work/store-run" --storage-driver vfs)
trap 'buildah "${store[@]}" rmi --all --force >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
# A dynamic program has an interpreter, which is not in the image.
! readelf --program-headers "$program" | grep INTERP >/dev/null || { echo "$program is not static: it needs an interpreter" >&2; exit 2; }
mkdir "$work/context"
cp "$program" "$work/context/spanscore"
cp /etc/ssl/certs/ca-certificates.crt "$work/context/"
echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/policy.json"
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
buildah "${store[@]}" bud --quiet --isolation chroot --signature-policy "$work/policy.json" --format oci --target prebuilt --timestamp "$epoch" \
  --build-arg "REVISION=$(git rev-parse HEAD)" -t "$name" -f deploy/Dockerfile "$work/context" >/dev/null
buildah "${store[@]}" push --quiet --signature-policy "$work/policy.json" "$name" "oci:$work/image:$name"
# shellcheck source=deploy/pack.sh
. deploy/pack.sh
pack "$archive" "$epoch" "$work/image" .
