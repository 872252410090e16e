#!/bin/sh
# Shows on a host with a GPU that bytes are right there and how fast they come. Builds nothing: benches/gpu/pack.sh has
# gathered this folder elsewhere. Usage: FOLDER/run.sh [ROUNDS SECONDS]
set -u
folder=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-7}
seconds=${2:-1}
failed=0

if ! nvidia-smi --query-gpu=index,name,uuid,driver_version,pci.bus_id,pcie.link.gen.current,pcie.link.width.current,memory.used --format=csv; then
    echo "skipped: no CUDA device"
    exit 0
fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for test in "$folder"/tests/*cuda*; do
    echo "== $(basename "$test")"
    if S3ENGINE_GPU_TESTS=1 timeout 300 "$test" --test-threads=1 --show-output >"$said" 2>&1; then
        grep -E '^(test |skipped: )' "$said"
    else
        failed=1
        grep -v '^$' "$said" | tail -60
    fi
done
echo "== rates"
timeout 500 "$folder/gpu" check rates scale attach faults "$rounds" "$seconds" || failed=1
echo "== memory in use after all"
nvidia-smi --query-gpu=index,memory.used --format=csv
exit $failed
