#!/usr/bin/env bash
# Makes the files of a release in target/release-VERSION, from a clean clone and without secrets. docs/releasing.md says what
# each is and how they are published. Two runs of one commit give equal bytes; the page says on which machines.
#   deploy/release.sh VERSION [TARGET]     for this machine's architecture, or for another target whose standard library and linker are installed
# Needs Rust, a C compiler, GNU tar, Python and git; for the image also buildah and readelf. Fetches maturin and cargo-about. What it cannot make,
# it names at the end, and leaves out.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
refuse() { echo "error: $*" >&2; exit 2; }
missing=''
not_made() { missing+="NOT MADE: $*"$'\n'; }
version=${1:-} host=$(rustc -vV | sed -n 's/^host: //p')
export TARGET=${2:-$host}
[ -n "$version" ] || refuse "name the version: deploy/release.sh VERSION [TARGET]"
for file in Cargo.toml:'version = "\(.*\)"' deploy/helm/spanscore/Chart.yaml:'version: \(.*\)' deploy/helm/spanscore/Chart.yaml:'appVersion: \(.*\)' deploy/Dockerfile:'ARG VERSION=\(.*\)'; do
  found=$(sed -n "s/^${file#*:}$/\1/p" "${file%%:*}" | head -n 1)
  [ "$found" = "$version" ] || refuse "${file%%:*} has version $found, not $version"
done
[ -z "$(git status --porcelain)" ] || refuse "the clone has changes that are not committed"
[ -d "$(rustc --print target-libdir --target "$TARGET")" ] || refuse "cannot build for $TARGET: its standard library is not installed (rustup target add $TARGET)"
# On macOS only the system's C library can be used.
case $TARGET in
  *-linux-gnu) static=--static ;;
  *-apple-darwin) static='' ;;
  *) refuse "cannot build for $TARGET: only for Linux with glibc, which is linked in, and for macOS" ;;
esac
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# shellcheck source=deploy/pack.sh
. deploy/pack.sh
name=spanscore-$version-$TARGET out=$PWD/target/release-$version tools=$PWD/target/release-tools
rm -rf "$out" target/python target/deploy/*.whl target/deploy/stage
mkdir -p "$out" target/deploy/stage

[ -d "$tools/python" ] || python3 -m venv "$tools/python"
"$tools/python/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0 wheel==0.48.0
cargo install --locked --quiet cargo-about@0.9.3 --features cli --root "$tools"
PATH=$tools/bin:$tools/python/bin:$PATH

echo "=== licences, program and wheel"
cargo about generate --locked --fail --target "$TARGET" --config deploy/licenses/about.toml --output-file "$out/$name-licenses.txt" deploy/licenses/licenses.hbs
cp -R deploy/python target/python
cp LICENSE target/python/
cp "$out/$name-licenses.txt" target/python/LICENSES-of-crates.txt
deploy/build.sh $static --wheel target/python
# maturin lists the crates in the wheel, by cargo-cyclonedx, which names the folder of the clone.
wheel unpack --dest target/deploy/stage target/deploy/*.whl
bill=(target/deploy/stage/spanscore-"$version"/*.dist-info/sboms/spanscore.cyclonedx.json)
sed "s|file://$PWD|file:///spanscore|g" "${bill[0]}" >"$out/$name.cdx.json"
cp "$out/$name.cdx.json" "${bill[0]}"
wheel pack --dest-dir "$out" "target/deploy/stage/spanscore-$version"
# A static program runs beside any C library.
[ -z "$static" ] || wheel tags --remove --platform-tag="+musllinux_1_1_${TARGET%%-*}" "$out"/*.whl

echo "=== archive"
program=target/deploy/spanscore stage=target/deploy/stage/$name
mkdir -p "$stage"
cp "$program" LICENSE README.md deploy/spanscore.yaml "$stage/"
cp "$out/$name-licenses.txt" "$stage/LICENSES-of-crates.txt"
pages=("$program")
# A program for another machine cannot write its pages here.
"$program" --version || pages=(cargo run --locked --quiet --)
"${pages[@]}" man "$stage/man/man1"
mkdir "$stage/completions"
for shell in bash zsh fish; do "${pages[@]}" completions $shell >"$stage/completions/spanscore.$shell"; done
pack "$out/$name.tar.gz" "$SOURCE_DATE_EPOCH" target/deploy/stage "$name"

echo "=== image and chart"
if [[ $TARGET != *-linux-gnu ]]; then
  not_made "the image: it is for Linux"
elif ! command -v buildah >/dev/null || ! command -v readelf >/dev/null; then
  not_made "the image: no buildah or no readelf (Debian: buildah binutils)"
elif [ "$TARGET" != "$host" ]; then
  not_made "the image: buildah packs it for this machine's architecture"
else
  deploy/image.sh "$program" "$out/$name.oci.tar" "localhost/spanscore:$version"
fi
pack "$out/spanscore-$version.tgz" "$SOURCE_DATE_EPOCH" deploy/helm --exclude=spanscore/ci spanscore

cd "$out"
if command -v sha256sum >/dev/null; then sha256sum -- *; else shasum -a 256 -- *; fi >"$tools/SHA256SUMS"
mv "$tools/SHA256SUMS" .
ls -l
printf '%s' "$missing" >&2
