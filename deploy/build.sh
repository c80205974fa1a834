#!/usr/bin/env bash
# Builds spanscore for the image, in the profile `dist`, twice: the second build uses a profile of the first under load
# (profile-guided optimisation). Against a single build in `dist` that saves a tenth of the CPU of a span and 3 MiB of
# memory (docs/performance.md). It takes a quarter of an hour on two cores.
#   deploy/build.sh            leaves it in target/deploy/spanscore
#   deploy/build.sh --static   links the C library statically, for an image without one
#   … --plain                  builds once, without profile guidance: on an emulated machine, or for a repeatable build
#   FEATURES=kafka deploy/build.sh …   with cargo features. kafka needs make, a C++ compiler and OpenSSL's headers, for --static its archives, too
#                              (Debian: g++ make libssl-dev)
# Needs the llvm-profdata of the compiler's own LLVM; rustup installs it if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
static='' plain=''
for option; do
  case "$option" in
    # Relocations take 0.5 MB less in their packed form, which a C library of the target might not read.
    --static) static='-Ctarget-feature=+crt-static -Clink-arg=-Wl,-z,pack-relative-relocs' ;;
    --plain) plain=1 ;;
    *) echo "usage: deploy/build.sh [--static] [--plain]" >&2; exit 2 ;;
  esac
done
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
out=$PWD/target/deploy
mkdir -p "$out"

if [ -n "$plain" ]; then
  # Only the last step gets the flag: procedural macros cannot be static.
  cargo rustc --profile dist --locked "${features[@]}" --bin spanscore --target-dir target -- $static
  cp target/dist/spanscore "$out/spanscore"
  exit
fi

host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[ -x "$profdata" ] || rustup component add llvm-tools || true
[ -x "$profdata" ] || { echo "there is no $profdata: install the llvm-tools of this very rustc, or build with --plain" >&2; exit 2; }
profile=$out/profile
rm -rf "$profile"
mkdir "$profile"

build() { # NAME FLAGS
  # With --target the flags are not those of build scripts and macros, which run here.
  RUSTFLAGS="${RUSTFLAGS:-} $static $2" cargo build --profile dist --locked "${features[@]}" --bin spanscore --target "$host" --target-dir "$out/build"
  cp "$out/build/$host/dist/spanscore" "$out/$1"
}

build spanscore-instrumented "-Cprofile-generate=$profile"
# The load generator need not be fast, so it is built in `dev`. It checks that nothing was lost.
cargo bench --locked --profile dev --bench sidecar --target-dir target -- lean genai gzip http --rounds 1 --program "$out/spanscore-instrumented"
"$out/spanscore-instrumented" demo >"$out/demo.txt"
"$profdata" merge --output "$profile/merged" "$profile"
# Keeps code that hardly ever runs apart from code that does, so that it takes no memory.
# Functions that cannot unwind have no table for it, and those with equal code are kept once: by
# rustc's own linker, which it uses on x86_64.
small='-Cforce-unwind-tables=no'
[[ $host != x86_64-* ]] || small+=' -Clink-arg=-Wl,--icf=all'
build spanscore "-Cprofile-use=$profile/merged -Clink-arg=-Wl,-z,keep-text-section-prefix $small"
"$out/spanscore" --version
