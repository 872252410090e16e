#!/usr/bin/env bash
# The threaded tests under ThreadSanitizer. `ring_plain` makes words plain memory, so that it sees whether the
# cursors order them.
set -euo pipefail
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/^host: //p')
TSAN_OPTIONS="suppressions=$PWD/engine/ring/tsan.supp" \
RUSTC_BOOTSTRAP=1 \
RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg ring_plain" \
  cargo test --release -p s3engine-ring --target "$host" --target-dir target/tsan --lib -- two_threads --test-threads=1
