#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME from a base model without SFT ("Zero", arXiv 2502.01456): Qwen2.5-Math-7B, or with SIZE=32b
# Qwen2.5-32B on 4 nodes.
#
#   bash recipes/prime/run_qwen2.5-math-7b_zero_fsdp.sh [verl overrides ...]
#
# Settings, knobs and variants are those of run_eurus2-7b_fsdp.sh; the paper has no others for Zero.
# In the paper, 7B passes Qwen2.5-Math-7B-Instruct within 32 steps and 32B its counterpart within
# 16. Both are saturated after about 50, as responses lose their diversity. Base models have their
# own chat template on the hub; actor_rollout_ref.model.custom_chat_template sets another one.
#
# NEVER RUN ON A GPU: composed, checked and compared with the paper's settings by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin_variation prime/run_eurus2-7b_fsdp.sh "$@"

SIZE=${SIZE:-7b}
case "$SIZE" in
    7b) export MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-7B} ;;
    32b) export MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-32B} NNODES=${NNODES:-4} ROLLOUT_TP=${ROLLOUT_TP:-4} ;;
    *) echo "run_qwen2.5-math-7b_zero_fsdp.sh: SIZE=$SIZE must be 7b or 32b" >&2; exit 2 ;;
esac
export STEPS=${STEPS:-64} OUTPUT_DIR=${OUTPUT_DIR:-outputs/zero_${SIZE}_${VARIANT:-prime}}
exec bash "$RUN" "trainer.experiment_name=zero_$SIZE" "$@"
