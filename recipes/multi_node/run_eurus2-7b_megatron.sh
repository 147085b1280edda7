#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME with the policy on Megatron (tensor parallel) and the PRM on FSDP2, on the same
# GPUs: 8 of 80 GB.
#
#   bash recipes/multi_node/run_eurus2-7b_megatron.sh [verl overrides ...]
#
# Settings, knobs and variants are those of recipes/prime/run_eurus2-7b_fsdp.sh, without the
# variants that have a critic. Needs verl's extra `mcore` (Megatron-Core, mbridge, Transformer
# Engine). TP, PP: tensor and pipeline parallel size of the policy. docs/how_to/multi_node.md lists
# what works with Megatron. DRY_RUN=1 checks the configuration, but has no plan for Megatron.
# SHRINK=1 is refused, because Megatron does not run on a CPU.
#
# NEVER RUN: neither on a GPU nor anywhere else; only composed and checked.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
OWN_KNOBS="TP PP" begin_variation prime/run_eurus2-7b_fsdp.sh "$@"
[[ "${SHRINK:-0}" == 0 ]] || { echo "run_eurus2-7b_megatron.sh: SHRINK=1 runs on the CPU, and Megatron does not" >&2; exit 2; }
export ENGINE=megatron OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_megatron_${VARIANT:-prime}}
exec bash "$RUN" \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size="${TP:-4}" \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size="${PP:-1}" \
    prm.engine.strategy=fsdp2 \
    trainer.experiment_name=eurus2_7b_megatron \
    "$@"
