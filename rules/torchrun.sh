#!/usr/bin/env bash
# Start torchrun's agent on one node of a SLURM job; the agents rendezvous on the first node:
#   srun --nodes=2 --ntasks=2 rules/torchrun.sh --nproc-per-node=4 -m cs336_systems.benchmarks all_reduce --processes 8
set -euo pipefail
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
# Jobs that share a node use different ports.
port=$((20000 + SLURM_JOB_ID % 10000))
exec torchrun --nnodes="$SLURM_NNODES" --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-endpoint="${nodes%%$'\n'*}:$port" "$@"
