#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-SFT on GPUs: the start of PRIME's policy and PRM, with verl's own SFT trainer (arXiv
# 2502.01456).
#
#   bash recipes/prime/run_eurus2-7b_sft_fsdp.sh TRAIN_PARQUET [overrides of verl's sft_trainer_engine ...]
#   bash recipes/prime/run_eurus2-7b_sft_fsdp.sh data/sft/problems.parquet
#
# TRAIN_PARQUET has a column messages, from python -m data_preprocessing.sft_data or elsewhere.
# Several files: "[a,b]".
# The paper's data are 229,763 conversations of 1,391 tokens on average; its settings are the
# defaults here: all weights of Qwen2.5-Math-7B, lr 1e-5, cosine, warm-up over a tenth of the steps,
# 96 conversations per update, 3 epochs, seed 42, 6,144 tokens (as in the authors' published
# configuration). On the paper's data that is 7,179 updates. 6,144 tokens are more than the 4,096
# positions that the base model was trained with; MAX_LENGTH=4096 respects that. After an
# interruption, the same command resumes from its last checkpoint, which also contains a Hugging
# Face folder.
# DRY_RUN=1 prints the command instead of running it; SHRINK=1 makes two steps with a tiny untrained
# model on the CPU.
#
# NEVER RUN ON A GPU: its settings are composed by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 1 "MODEL OUTPUT_DIR VAL_FILES N_GPUS NNODES BATCH LR EPOCHS MAX_LENGTH TOKENS_PER_GPU ULYSSES SAVE_FREQ SEED
    DRY_RUN SHRINK SHRINK_STEPS PYTHON TORCHRUN" "$@"
TRAIN=$1
shift
MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_sft}
N_GPUS=${N_GPUS:-8}
BATCH=${BATCH:-96}
LR=${LR:-1e-5}
EPOCHS=${EPOCHS:-3}
MAX_LENGTH=${MAX_LENGTH:-6144}
TOKENS_PER_GPU=${TOKENS_PER_GPU:-$((2 * MAX_LENGTH))}
SAVE_FREQ=${SAVE_FREQ:-500}
SEED=${SEED:-42}
# shellcheck source=recipes/sft_launch.sh
source "$PROJECT_ROOT/recipes/sft_launch.sh"

launch_sft eurus2_7b_sft "$TRAIN" \
    optim.lr_warmup_steps_ratio=0.1 \
    engine.seed="$SEED" \
    trainer.seed="$SEED" \
    "$@"
