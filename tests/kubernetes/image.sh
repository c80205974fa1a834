#!/usr/bin/env bash
# The image: packed from a static binary by buildah, as deploy/Dockerfile says, then run from an empty root.
#
#   image.sh [BINARY]     packs it (deploy/image.sh); without one it is built as for a release (deploy/build.sh)
#   image.sh ARCHIVE.tar  tests an archive that is packed already
#   FEATURES=kafka image.sh [BINARY]     the image for Kafka, localhost/spanscore-kafka:test
#
# Leaves target/kubernetes/spanscore.tar (an OCI archive, localhost/spanscore:test) for the node, unless given a debug binary for a quick look.
# Does not prove that the build stage of the Dockerfile works, whose base image comes from a registry, nor that a program built with a profile
# does what the plain one does, nor what containerd makes of the image; on-node.sh runs it there.
. "$(dirname "$0")/lib.sh"
# Without a profile the image has 19.0 MB (docs/performance.md); the aim is 16.
MAX_SIZE=21000000 name=spanscore
# The aim.
[ "${FEATURES:-}" != kafka ] || MAX_SIZE=25000000 name=spanscore-kafka

packages buildah:buildah readelf:binutils ip:iproute2 unshare:util-linux python3:python3 || { skip "the image: no buildah to build it"; exit 0; }
[ "$(id -u)" = 0 ] || { skip "the image in an empty root: needs root"; exit 0; }

archive=${1:-}
if [[ $archive != *.tar ]]; then
  binary=$archive archive=$out/$name.tar
  if [ -z "$binary" ]; then
    "$root/deploy/build.sh" --static
    binary=$root/target/deploy/spanscore
  fi
  [ -f /etc/ssl/certs/ca-certificates.crt ] || install_packages ca-certificates || fail "there are no certificates to pack"
  "$root/deploy/image.sh" "$binary" "$archive" "localhost/$name:test" || fail "the image cannot be packed"
fi
echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$out/policy.json"
store=(--root "$out/store" --runroot "$out/store-run" --storage-driver vfs)
trap 'buildah "${store[@]}" rmi --all --force >/dev/null 2>&1 || true; rm -rf "$out/store" "$out/store-run"' EXIT
container=$(buildah "${store[@]}" from --signature-policy "$out/policy.json" "oci-archive:$archive")
config=$(buildah "${store[@]}" inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.WorkingDir}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}} {{index .OCIv1.Config.Labels "org.opencontainers.image.version"}}' "$container")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)
[ "$config" = "65532:65532 /etc/spanscore [/spanscore] [run] $version" ] || fail "the image's settings are $config"

empty_root=$(buildah "${store[@]}" mount "$container")
size=$(du -sb --apparent-size "$empty_root" | cut -f1)
say "$size bytes unpacked, $(stat -c %s "$archive") as an archive; $(find "$empty_root" -type f | wc -l) files"
[ "$size" -le "$MAX_SIZE" ] || fail "the image has $size bytes, more than $MAX_SIZE"

begun=$(date +%s.%N)
unshare --net --mount --fork --kill-child timeout 60 python3 "$here/empty_root.py" "$empty_root" "$root/examples"
say "ran in an empty root for $(seconds "$begun") s"
