#!/usr/bin/env bash
# Builds each single mutation of the rings and shows that a test or model kills it. Usage: mutants.sh [number...]
# `unit` is the test suite, `model` the model checker. A killer that hangs counts as killed after its bound.
set -uo pipefail
cd "$(dirname "$0")/../.."
# What a mutant fails with is no regression of the rings.
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1

table() { cat <<'TABLE'
1  model tail store Relaxed
2  model tail load Relaxed
3  model head store Relaxed
4  model head load Relaxed
5  model no fence after publishing
6  model no fence before the second look
7  model tail published before the entry is written
8  unit  full is one entry late
9  unit  mask of half the ring
10 model no second look before sleeping
11 unit  one completion of credit a request instead of two
12 unit  event compared off by one
13 unit  event asked for off by one
14 unit  cursor jumps accepted
15 model submissions shown before the completions taken
16 model completions shown before the requests taken
17 model head published before the entry is copied
18 unit  sequence not compared
19 unit  end of a name not compared with the arena
20 unit  credit returned by an announcement
21 unit  a request number in flight accepted again
22 model a cancel of what has ended handed on
23 unit  room for one cancel too few
24 unit  a request cancelled twice
25 unit  unused fields of a plain NOP not looked at
26 unit  sequence of a plain NOP not compared
27 unit  a request number in flight accepted again for a plain NOP
28 unit  a cancel staged for what is not in flight
29 unit  a cancel counted as a request
30 unit  number of a refused push lost
TABLE
}

unit() { "$@" --release -p s3engine-ring --target-dir target/mutants --lib -q -- --skip two_threads; }
model() {
  RUSTFLAGS="--cfg ring_loom" "$@" --release -p s3engine-ring --target-dir target/loom --lib -q models
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
survived=0
while read -r number suite what; do
  if [ $# -gt 0 ] && [[ " $* " != *" $number "* ]]; then continue; fi
  export RING_MUTANT=$number
  # Built before its time begins: a slow compiler kills nothing.
  if ! "$suite" cargo test --no-run >"$log" 2>&1; then
    verdict=BROKEN
    survived=$((survived + 1))
  elif "$suite" timeout 120 cargo test >"$log" 2>&1; then
    verdict=SURVIVED
    survived=$((survived + 1))
  else
    killer=$(grep -oE '^    [a-z_]+::[a-z_:]+' "$log" | sed 's/.*:://' | sort -u | head -1)
    # A deadlock found by the model checker aborts the run before the test's name is reported.
    [ -n "$killer" ] || killer=$(grep -oiE 'deadlock|overflow|SIG[A-Z]+' "$log" | sort -u | tr '\n' ' ')
    verdict="killed by ${killer:-its time bound}"
  fi
  printf '%2s  %-5s  %-55s  %s\n' "$number" "$suite" "$what" "$verdict"
done < <(table)
[ "$survived" = 0 ] || { echo "$survived not killed" >&2; exit 1; }
