#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PSPO-WRS on GPUs, 2 of 3: the policy that PPO starts from, with verl's own SFT trainer (arXiv
# 2411.11681).
#
#   bash recipes/pspo_wrs/run_abel-7b_sft_fsdp.sh MODEL TRAIN_PARQUET [overrides of verl's sft_trainer_engine ...]
#   bash recipes/pspo_wrs/run_abel-7b_sft_fsdp.sh GAIR/Abel-7B-002 sft.parquet
#
# TRAIN_PARQUET has a column messages with question and answer in steps ("\n [1] ...", "the answer
# is option 1. #### 1").
# One epoch at 3e-5 with 3 % warm-up, 64 conversations per update, 1,024 tokens, as in the original.
# After an interruption, the same command resumes from its last checkpoint. python -m
# prime_ext.generate.export makes a Hugging Face folder of a checkpoint; with hf_model among its
# contents, as here, there is one already.
# DRY_RUN=1 prints the command; SHRINK=1 makes two steps with a tiny untrained model on the CPU.
#
# NEVER RUN ON A GPU: its settings are composed by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 2 "CHAT_TEMPLATE OUTPUT_DIR VAL_FILES N_GPUS NNODES BATCH LR EPOCHS MAX_LENGTH TOKENS_PER_GPU ULYSSES SAVE_FREQ
    DRY_RUN SHRINK SHRINK_STEPS PYTHON TORCHRUN" "$@"
MODEL=$1
TRAIN=$2
shift 2
OUTPUT_DIR=${OUTPUT_DIR:-outputs/pspo_wrs/sft}
N_GPUS=${N_GPUS:-2}
BATCH=${BATCH:-64}
LR=${LR:-3e-5}
EPOCHS=${EPOCHS:-1}
MAX_LENGTH=${MAX_LENGTH:-1024}
TOKENS_PER_GPU=${TOKENS_PER_GPU:-8192}
SAVE_FREQ=${SAVE_FREQ:-200}
# shellcheck source=recipes/sft_launch.sh
source "$PROJECT_ROOT/recipes/sft_launch.sh"

# A chat template for the Abel models, which are older than such templates.
TEMPLATE=()
[[ "$MODEL" != *Abel* ]] || CHAT_TEMPLATE=${CHAT_TEMPLATE-$PROJECT_ROOT/recipes/pspo_wrs/question_answer.jinja}
if [[ -n "${CHAT_TEMPLATE:-}" ]] && ! shrink; then
    quoted=$(< "$CHAT_TEMPLATE")
    TEMPLATE=("model.custom_chat_template='${quoted//\'/\\\'}'")
fi
launch_sft pspo_wrs_sft "$TRAIN" \
    "${TEMPLATE[@]}" \
    optim.lr_warmup_steps_ratio=0.03 \
    "$@"
