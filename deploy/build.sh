#!/usr/bin/env bash
# Builds spanscore in the profile `dist`, for the image and for releases. Two builds of one commit on one machine
# give equal bytes, wherever the clones are (docs/releasing.md says what was compared).
#   deploy/build.sh                    leaves it in target/deploy/spanscore
#   deploy/build.sh --static           links the C library statically, for an image without one
#   deploy/build.sh --profile-guided   builds twice, the second time with a profile of the first under load, which is not
#                                      the same in every build. Saves a tenth of the CPU of a span and 3 MiB of memory
#                                      (docs/performance.md). Needs the llvm-profdata of the compiler's own LLVM; rustup
#                                      installs it if it is missing.
#   deploy/build.sh --wheel FOLDER     also packs it as a Python wheel with maturin, by the pyproject.toml in FOLDER, into target/deploy
#   TARGET=aarch64-unknown-linux-gnu deploy/build.sh …   for another target, whose standard library and linker are installed
#   FEATURES=kafka deploy/build.sh …   with cargo features. kafka needs make, a C++ compiler and OpenSSL's headers, for --static its archives, too
#                                      (Debian: g++ make libssl-dev)
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "usage: deploy/build.sh [--static] [--profile-guided | --wheel FOLDER]" >&2; exit 2; }
static='' guided='' wheel='' libc=pypi
while [ $# -gt 0 ]; do
  case "$1" in
    # Relocations take 0.5 MB less in their packed form, which a C library of the target might not read.
    --static) libc=manylinux2014 static='-Ctarget-feature=+crt-static -Clink-arg=-Wl,-z,pack-relative-relocs' ;;
    --profile-guided) guided=1 ;;
    --wheel) wheel=$(realpath "${2:-}") || usage; shift ;;
    *) usage ;;
  esac
  shift
done
[ -z "$guided" ] || [ -z "$wheel" ] || usage
features=(--features "${FEATURES:-}")
if [ -n "$static" ] && [[ ${FEATURES:-} == *kafka* ]]; then
  # The Kafka client's C libraries: OpenSSL from the system's archives, zlib from its crate.
  archive=$(cc -print-file-name=libssl.a)
  [ -f "$archive" ] || { echo "there is no libssl.a to link statically (Debian: libssl-dev)" >&2; exit 2; }
  export OPENSSL_STATIC=1 OPENSSL_LIB_DIR="${archive%/*}" OPENSSL_INCLUDE_DIR=/usr/include LIBZ_SYS_STATIC=1
fi
# We write zstd at its lowest level only, which needs one of its eight compressors. The client for
# Kafka has levels of its own.
if [[ ${FEATURES:-} != *kafka* ]]; then
  for unused in DFAST GREEDY LAZY LAZY2 BTLAZY2 BTOPT BTULTRA; do
    CFLAGS="${CFLAGS:-} -DZSTD_EXCLUDE_${unused}_BLOCK_COMPRESSOR"
  done
  export CFLAGS
fi
host=$(rustc -vV | sed -n 's/^host: //p')
target=${TARGET:-$host}
# What `spanscore --version` says. A clone has git; the image's build stage gets the commit as a variable.
export BUILD_PROFILE=dist BUILD_COMMIT=${BUILD_COMMIT:-$(git describe --always --abbrev=12 --dirty --exclude='*' 2>/dev/null || echo unknown)}
out=$PWD/target/deploy
mkdir -p "$out"
# With --target the flags are not those of build scripts and macros, which run here. Panics name source files: without
# the folders of this machine.
build=(--profile dist --locked "${features[@]}" --target "$target" --target-dir "$out/build")
flags="${RUSTFLAGS:-} $static --remap-path-prefix=$PWD=/spanscore --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"

build() { # NAME FLAGS
  RUSTFLAGS="$flags $2" cargo build "${build[@]}" --bin spanscore
  cp "$out/build/$target/dist/spanscore" "$out/$1"
}

if [ -z "$guided" ]; then
  build spanscore ''
  # With the same variables and flags, maturin finds the program built.
  [ -z "$wheel" ] || (cd "$wheel" && RUSTFLAGS="$flags" maturin build "${build[@]}" --compatibility "$libc" --out "$out")
  exit
fi

profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[ -x "$profdata" ] || rustup component add llvm-tools || true
[ -x "$profdata" ] || { echo "there is no $profdata: install the llvm-tools of this very rustc" >&2; exit 2; }
profile=$out/profile
rm -rf "$profile"
mkdir "$profile"
build spanscore-instrumented "-Cprofile-generate=$profile"
# The load generator need not be fast, so it is built in `dev`. It checks that nothing was lost.
cargo bench --locked --profile dev --bench sidecar --target-dir target -- lean genai gzip http --rounds 1 --program "$out/spanscore-instrumented"
"$out/spanscore-instrumented" demo >"$out/demo.txt"
"$profdata" merge --output "$profile/merged" "$profile"
# Keeps code that hardly ever runs apart from code that does, so that it takes no memory.
# Functions that cannot unwind have no table for it, and those with equal code are kept once: by
# rustc's own linker, which it uses on x86_64.
small='-Cforce-unwind-tables=no'
[[ $target != x86_64-* ]] || small+=' -Clink-arg=-Wl,--icf=all'
build spanscore "-Cprofile-use=$profile/merged -Clink-arg=-Wl,-z,keep-text-section-prefix $small"
"$out/spanscore" --version
