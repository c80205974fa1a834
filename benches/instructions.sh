#!/usr/bin/env bash
# Counts the instructions per span of scan, assembly and judgement with callgrind, and compares them with
# benches/instructions.txt. Shows a regression even on a noisy machine. Needs valgrind. `.ci/extended` runs this script.
#   benches/instructions.sh             exits 1 if a case costs over 3 % more than recorded
#   benches/instructions.sh --record    records the counts
#   PROFILE=release …                   counts in this profile; the recorded counts were made in `dist`
# The counts depend on the compiler, the allocator and the CPU's features, so record and compare on one machine.
set -euo pipefail
cd "$(dirname "$0")/.."
record=benches/instructions.txt
tolerance_percent=3
n_requests=9

[ "${1:-}" = --record ] || [ -f "$record" ] || { echo "no record to compare with: run benches/instructions.sh --record first" >&2; exit 2; }
command -v valgrind >/dev/null || { echo "valgrind is needed: apt-get install valgrind" >&2; exit 2; }
program=$(cargo bench --locked --profile "${PROFILE:-dist}" --bench instructions --no-run --message-format=json |
  sed -n 's/.*"name":"instructions".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "the benchmark was not built" >&2; exit 2; }

counted() { # CASE N
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" $1 "$2" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

found=$(mktemp)
trap 'rm -f "$found"' EXIT
failed=0
while read -r case; do
  per_span=$((($(counted "$case" $n_requests) - $(counted "$case" 0)) / (n_requests * 512)))
  recorded=$(sed -n "s/^$case \([0-9]*\)$/\1/p" "$record" 2>/dev/null || true)
  verdict=
  if [ "${1:-}" != --record ] && [ -n "$recorded" ] && [ $((per_span * 100)) -gt $((recorded * (100 + tolerance_percent))) ]; then
    verdict=" MORE than recorded"
    failed=1
  fi
  printf '%-16s %6d instructions a span (recorded: %s)%s\n' "$case" "$per_span" "${recorded:-none}" "$verdict"
  echo "$case $per_span" >>"$found"
done < <("$program")
[ "${1:-}" != --record ] || cp "$found" "$record"
exit $failed
