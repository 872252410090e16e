#!/usr/bin/env bash
# A job that brings its own host service: one on each node, of the job's own user; then the tasks, which need no keys.
# Where nodes run deploy/s3engine.service and let the job's group attach, a job needs none of this.
#   sbatch deploy/slurm.sh python train.py
#SBATCH --job-name=s3engine
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --exclusive
set -euo pipefail
: "${AWS_ENDPOINT_URL:?the address of the storage}" "${AWS_ACCESS_KEY_ID:?}" "${AWS_SECRET_ACCESS_KEY:?}"
[ $# -gt 0 ] || { echo "usage: sbatch $0 COMMAND [ARGUMENT...]" >&2; exit 2; }

# Local to each node. `s3engine get` and `ls` find it by this variable, a program by Engine::connect.
export S3ENGINE_SERVICE=/tmp/s3engine-$SLURM_JOB_ID/s3engine.sock
one_per_node=(srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)

# --mem=0: all memory of the job, as its pool is for all tasks.
"${one_per_node[@]}" --mem=0 --job-name=s3engine-service \
  s3engine serve --socket "$S3ENGINE_SERVICE" --drain 20s &
service=$!
finish() {
  # The step itself gets the signal, and its requests may end first. A TERM of srun would kill it.
  local step
  step=$(squeue --steps --noheader --job "$SLURM_JOB_ID" --format '%i %j' | awk '$2 == "s3engine-service" { print $1 }')
  [ -z "$step" ] || scancel --signal=TERM "$step"
  wait "$service" || true
  "${one_per_node[@]}" rm -rf "${S3ENGINE_SERVICE%/*}" || true
}
trap finish EXIT

# On every node, or not at all.
"${one_per_node[@]}" bash -c '
  for _ in {1..300}; do [ -S "$1" ] && exit 0; sleep 0.1; done
  echo "$(hostname): no host service at $1 after 30 s" >&2; exit 1' _ "$S3ENGINE_SERVICE"

env -u AWS_ENDPOINT_URL -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY srun --overlap "$@"
