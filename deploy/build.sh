#!/usr/bin/env bash
# Builds spanscore as its image carries it: twice, the second time arranged by what the first did under load (profile-guided optimisation).
# Against `cargo build --release` that saves a tenth of the CPU of a span and 3 MiB of memory (docs/performance.md), and takes a quarter of an
# hour of two cores.
#   deploy/build.sh            leaves it in target/deploy/spanscore
#   deploy/build.sh --static   the same with the C library in it, for an image that has none
#   … --plain                  built once, without a profile: where the machine is emulated, or a build must be repeatable
# The profile is read by the llvm-profdata of the compiler's own LLVM; rustup is asked for it where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
static='' plain=''
for option; do
  case "$option" in
    --static) static='-Ctarget-feature=+crt-static' ;;
    --plain) plain=1 ;;
    *) echo "usage: deploy/build.sh [--static] [--plain]" >&2; exit 2 ;;
  esac
done
out=$PWD/target/deploy
mkdir -p "$out"

if [ -n "$plain" ]; then
  # Only the last step is told that it is static; what is built before, procedural macros among it, is built as ever.
  cargo rustc --release --locked --bin spanscore --target-dir target -- $static
  cp target/release/spanscore "$out/spanscore"
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
  RUSTFLAGS="${RUSTFLAGS:-} $static $2" cargo build --release --locked --bin spanscore --target "$host" --target-dir "$out/build"
  cp "$out/build/$host/release/spanscore" "$out/$1"
}

build spanscore-instrumented "-Cprofile-generate=$profile"
# What the load generator costs is nobody's concern, so that it is built quickly. It checks that nothing was lost.
cargo bench --locked --profile dev --bench sidecar --target-dir target -- lean genai gzip http --rounds 1 --program "$out/spanscore-instrumented"
"$out/spanscore-instrumented" demo >"$out/demo.txt"
"$profdata" merge --output "$profile/merged" "$profile"
# What hardly ever runs lies apart from what does, so that it takes no memory.
build spanscore "-Cprofile-use=$profile/merged -Clink-arg=-Wl,-z,keep-text-section-prefix"
"$out/spanscore" --version
