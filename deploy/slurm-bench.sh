#!/usr/bin/env bash
# The same sweep on all nodes of a job, begun at the same moment, and one report of all: how the storage bears several
# hosts. `bench scale` starts the services and clients it needs by itself.
#   sbatch deploy/slurm-bench.sh [FLAGS OF bench scale...]
#SBATCH --job-name=s3engine-bench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -euo pipefail
: "${AWS_ENDPOINT_URL:?the address of the storage}" "${AWS_ACCESS_KEY_ID:?}" "${AWS_SECRET_ACCESS_KEY:?}"

# A folder that all nodes and this script see.
folder=$PWD/s3engine-bench-$SLURM_JOB_ID
mkdir "$folder"
# Clocks must agree (NTP); time enough for the slowest node to start.
start=$(date +%s --date='60 seconds')

# --cpu-bind=none: it spreads over the whole node by itself.
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none bash -c '
  file=$1/$SLURMD_NODENAME.json; start=$2; shift 2
  exec s3engine bench scale --endpoint "$AWS_ENDPOINT_URL" --start-at "$start" --json "$file" "$@"' _ "$folder" "$start" "$@"

s3engine bench merge "$folder"/*.json -o "$folder/all.json" --html "$folder/all.html"
