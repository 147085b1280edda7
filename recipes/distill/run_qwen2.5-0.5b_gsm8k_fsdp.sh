#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On-policy distillation on GSM8K: Qwen2.5-0.5B-Instruct learns from Qwen2.5-Math-7B-Instruct, on 8
# GPUs of 80 GB or one.
#
#   bash recipes/distill/run_qwen2.5-0.5b_gsm8k_fsdp.sh [verl overrides ...]
#   TEACHER=/models/any-with-the-same-tokens bash recipes/distill/run_qwen2.5-0.5b_gsm8k_fsdp.sh
#   DRY_RUN=1 N_GPUS=1 bash recipes/distill/run_qwen2.5-0.5b_gsm8k_fsdp.sh   # memory, time and disk space, without a GPU
#
# This is the run of recipes/prime_gsm8k.sh, and it takes the same knobs. The published accuracies
# of the two models on GSM8K are 49.6 and 95.2 %; distillation has not been measured here.
#
# NEVER RUN ON A GPU: composed, checked and planned by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
OWN_KNOBS="MODEL_PATH TEACHER"
begin_variation prime_gsm8k.sh "$@"

export TRAIN_BATCH=${TRAIN_BATCH:-64} MINI_BATCH=${MINI_BATCH:-64} STEPS=${STEPS:-200} EPOCHS=${EPOCHS:-100}
export POLICY_LR=${POLICY_LR:-2e-6} TOKENS_PER_GPU=${TOKENS_PER_GPU:-8192} OUTPUT_DIR=${OUTPUT_DIR:-outputs/distill_qwen2.5_0.5b_gsm8k}
exec bash "$RUN" "${MODEL_PATH:-Qwen/Qwen2.5-0.5B-Instruct}" variant=on_policy_distillation \
    prm.model.path="${TEACHER:-Qwen/Qwen2.5-Math-7B-Instruct}" prm.model.use_fused_kernels=true \
    trainer.experiment_name=distill_qwen2.5_0.5b_gsm8k "$@"
