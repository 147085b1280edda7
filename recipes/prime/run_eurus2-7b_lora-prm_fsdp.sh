#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME with a LoRA adapter as the PRM: no second and third model of 7B in memory.
#
#   bash recipes/prime/run_eurus2-7b_lora-prm_fsdp.sh [verl overrides ...]
#   DRY_RUN=1 bash recipes/prime/run_eurus2-7b_lora-prm_fsdp.sh   # memory, time and disk space, without a GPU
#
# Settings, knobs and variants are those of run_eurus2-7b_fsdp.sh, except for the PRM: its base
# weights are its reference (prm.reference=base), and only the adapter has gradients and optimizer
# states (docs/explanation/implicit_prm.md). The policy trains all its weights. The paper has no
# such run; rank, alpha and rate are ours, and measured on tiny models only.
#
# NEVER RUN ON A GPU: composed and checked by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
OWN_KNOBS="LORA_RANK LORA_ALPHA PRM_LR" begin_variation prime/run_eurus2-7b_fsdp.sh "$@"

RANK=${LORA_RANK:-32}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_lora_prm_${VARIANT:-prime}}
# Two responses of full length at a time in passes without gradients: with four, their logits would
# need about as much memory as the adapter saves.
export INFER_TOKENS_PER_GPU=${INFER_TOKENS_PER_GPU:-$((2 * (${MAX_PROMPT:-1024} + ${MAX_RESPONSE:-3072})))}
# An adapter needs about ten times the learning rate of all weights.
exec bash "$RUN" \
    prm.model.lora_rank="$RANK" \
    prm.model.lora_alpha="${LORA_ALPHA:-$((2 * RANK))}" \
    prm.model.target_modules=all-linear \
    prm.reference=base \
    prm.optim.lr="${PRM_LR:-1e-5}" \
    trainer.experiment_name=eurus2_7b_lora_prm \
    "$@"
