#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# EurusPRM, stage 2: the PRM of stage 1, trained further on labels of steps (arXiv 2502.01456,
# appendix).
#
#   TRAIN_FILES=steps.jsonl bash recipes/prime/run_eurusprm-stage2_fsdp.sh [overrides of offline_prm_common.yaml ...]
#   DRY_RUN=1 bash recipes/prime/run_eurusprm-stage2_fsdp.sh   # memory, time and disk space, without a GPU
#   SHRINK=1 bash recipes/prime/run_eurusprm-stage2_fsdp.sh    # two steps on the CPU with a tiny untrained model
#
# The loss is the cross-entropy of the sum so far at the end of every step; the reference stays that
# of stage 1. 8 GPUs of 80 GB. README.md in this folder has the settings with their sources, and our
# assumptions. Data: TRAIN_FILES, responses cut into steps with a label each
# (docs/reference/offline_prm.md); PRIME-RL/EurusPRM-Stage2-Data on the hub has columns that we have
# not seen. MODEL_PATH is stage 1's result, or PRIME-RL/EurusPRM-Stage1. After an interruption, the
# same command resumes from its last checkpoint.
#
# NEVER RUN ON A GPU: composed, checked and compared with the published settings by a test on the
# CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 0 "MODEL_PATH PRM_REFERENCE TRAIN_FILES OUTPUT_DIR N_GPUS NNODES TOKENS_PER_GPU SAVE_FREQ LOGGER
    DRY_RUN SHRINK PYTHON TORCHRUN" "$@"
# shellcheck source=recipes/eurusprm.sh
source "$PROJECT_ROOT/recipes/eurusprm.sh"

MODEL_PATH=${MODEL_PATH:-PRIME-RL/EurusPRM-Stage1}
PRM_REFERENCE=${PRM_REFERENCE:-Qwen/Qwen2.5-Math-7B-Instruct}
TRAIN_FILES=${TRAIN_FILES:-data/eurusprm_stage2/steps.jsonl}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurusprm_stage2}

# One response per prompt: 64 of them are the published batch.
train_eurusprm "set TRAIN_FILES to responses with labeled steps (docs/reference/offline_prm.md), your own or PRIME-RL/EurusPRM-Stage2-Data" \
    data.prompts_per_step=64 \
    prm.loss=step_ce \
    trainer.save_freq="${SAVE_FREQ:-100}" \
    trainer.experiment_name=eurusprm_stage2 \
    "$@"
