#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME on GSM8K with Qwen2.5-0.5B-Instruct, on one GPU of 24, 80 or 141 GB.
#
#   bash recipes/prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh [verl overrides ...]
#   GPU=80 bash recipes/prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh
#   DRY_RUN=1 bash recipes/prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh   # memory, time and disk space, without a GPU
#
# GPU: 24 (default), 80 or 141 GB. It sets offloading, micro-batches and the rollout engine's share
# of memory, but does not change results. This is the run of recipes/prime_gsm8k.sh, with its knobs
# and the sizes of verl's published example: 64 prompts x 4 per step, 435 steps. verl's table has
# 58.7 for PRIME, 56.7 for PPO and 49.6 for the model itself; README.md in this folder lists the
# differences.
#
# NEVER RUN ON A GPU: composed, checked and planned by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
OWN_KNOBS="GPU MODEL_PATH" begin_variation prime_gsm8k.sh "$@"

GPU=${GPU:-24}
case "$GPU" in
    24) profile=(4096 0.5 true) ;;
    80) profile=(16384 0.5 false) ;;
    141) profile=(32768 0.6 false) ;;
    *) echo "run_qwen2.5-0.5b_gsm8k_fsdp.sh: GPU=$GPU must be 24, 80 or 141" >&2; exit 2 ;;
esac
export TOKENS_PER_GPU=${TOKENS_PER_GPU:-${profile[0]}} ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-${profile[1]}}
export OFFLOAD=${OFFLOAD:-${profile[2]}} DEVICE_MEMORY=${DEVICE_MEMORY:-$GPU}
# verl's example: 15 epochs of 7,473 problems, 256 of them for each step of 64 that pass its filter.
export N_GPUS=${N_GPUS:-1} TRAIN_BATCH=${TRAIN_BATCH:-64} MINI_BATCH=${MINI_BATCH:-64} STEPS=${STEPS:-435} EPOCHS=${EPOCHS:-100}
export POLICY_LR=${POLICY_LR:-5e-7} PRM_LR=${PRM_LR:-1e-6} OUTPUT_DIR=${OUTPUT_DIR:-outputs/qwen2.5_0.5b_gsm8k}
exec bash "$RUN" "${MODEL_PATH:-Qwen/Qwen2.5-0.5B-Instruct}" trainer.experiment_name=qwen2.5_0.5b_gsm8k "$@"
