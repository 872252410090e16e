#!/usr/bin/env bash
# Instructions (valgrind) and system calls (perf, where it may) for one GET of 64 KiB and one NOP, beside the baseline.
#   benches/cost/run.sh            shows what has changed
#   benches/cost/run.sh --update   writes the baseline anew
# Each is the difference of two runs of different length, so that starting and ending do not count.
set -euo pipefail
cd "$(dirname "$0")"
baseline=baseline.txt

[ $# -eq 0 ] || [ "$*" = --update ] || { sed -n '2,5p' "$0" >&2; exit 2; }
command -v valgrind >/dev/null || { echo "valgrind is needed" >&2; exit 3; }
# By libc: valgrind hides the kernel's page of functions that the calls else go through.
export RUSTFLAGS="--cfg=rustix_use_libc"
program=$(cargo bench --target-dir "$PWD/../../target/cost" -p s3engine-benches --bench cost --no-run \
  --message-format=json --quiet |
  sed -n 's/.*"executable":"\([^"]*cost-[^"]*\)".*/\1/p' | tail -1)

instructions() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$@" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p' | tail -1
}

calls() {
  perf stat -x, -e raw_syscalls:sys_enter "$program" "$@" 2>&1 >/dev/null | sed -n 's/^\([0-9]*\),.*sys_enter.*/\1/p'
}

# The difference of two runs, for one of what they differ in: COUNTER FEW MANY ARGUMENTS... where N is the count.
each() {
  local counter=$1 few=$2 many=$3 a b
  shift 3
  a=$("$counter" "${@/#N/$few}")
  b=$("$counter" "${@/#N/$many}")
  echo $(((b - a) / (many - few)))
}

measure() {
  echo "instructions-per-nop $(each instructions 2560 25600 nop N)"
  echo "instructions-per-get-64k $(each instructions 200 1200 get 65536 N 16)"
  if perf stat -e raw_syscalls:sys_enter true 2>/dev/null; then
    echo "system-calls-per-get-64k $(each calls 2000 12000 get 65536 N 16)"
    echo "system-calls-per-get-4k $(each calls 2000 12000 get 4096 N 64)"
    echo "system-calls-per-get-8m $(each calls 20 120 get 8388608 N 8)"
  fi
}

if [ "${1:-}" = --update ]; then
  measure | tee "$baseline"
  exit
fi
measure | while read -r what now; do
  was=$(sed -n "s/^$what //p" "$baseline")
  printf '%-26s %10d  was %10d  %+.1f %%\n' "$what" "$now" "${was:-0}" \
    "$(awk -v a="$now" -v b="${was:-0}" 'BEGIN { print b ? (a / b - 1) * 100 : 0 }')"
done
