#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# EurusPRM, stage 1: an implicit PRM trained offline on labels of whole responses (arXiv 2502.01456,
# appendix).
#
#   bash recipes/prime/run_eurusprm-stage1_fsdp.sh [overrides of offline_prm_common.yaml ...]
#   DRY_RUN=1 bash recipes/prime/run_eurusprm-stage1_fsdp.sh   # memory, time and disk space, without a GPU
#   SHRINK=1 bash recipes/prime/run_eurusprm-stage1_fsdp.sh    # two steps on the CPU with a tiny untrained model
#
# Cross-entropy from Qwen2.5-Math-7B-Instruct, which stays the reference; 8 GPUs of 80 GB. README.md
# in this folder has the settings with their sources, and the published numbers. Data: TRAIN_FILES,
# PRIME-RL/EurusPRM-Stage1-Data or your own in the formats of docs/reference/offline_prm.md. The
# result is OUTPUT_DIR/hf, which stage 2 starts from.
# After an interruption, the same command resumes from its last checkpoint.
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

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-7B-Instruct}
PRM_REFERENCE=${PRM_REFERENCE:-$MODEL_PATH}
TRAIN_FILES=${TRAIN_FILES:-data/eurusprm_stage1/Eurus2-PRM-stage1-data.parquet}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurusprm_stage1}

# 8 prompts with 8 responses are the published batch of 64.
train_eurusprm "get the published data with: hf download --repo-type dataset PRIME-RL/EurusPRM-Stage1-Data --local-dir data/eurusprm_stage1, or set TRAIN_FILES" \
    data.prompts_per_step=8 \
    prm.loss=ce \
    trainer.save_freq="${SAVE_FREQ:-500}" \
    trainer.experiment_name=eurusprm_stage1 \
    "$@"
