#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME with rollout servers on separate GPUs, which keep generating while policy and PRM
# train (verl's separate_async trainer, docs/explanation/async.md): 4 + 4 GPUs of 80 GB.
#
#   bash recipes/prime/run_eurus2-7b_separate-async_fsdp.sh [verl overrides ...]
#
# Settings, knobs and variants are those of run_eurus2-7b_fsdp.sh. The asynchronous part is ours,
# not the paper's. A batch may be a few versions old; importance weights per token, truncated at
# 2, correct for that. Baselines and whitening use the 64 prompts of one update, and weights go to
# the servers after each step of 4 updates.
# N_GPUS GPUs on each of NNODES nodes train, ROLLOUT_GPUS on each of ROLLOUT_NODES generate.
# WARMUP_BATCHES batches are generated ahead. training/off_policy/* measures the age of the data.
# DRY_RUN=1 plans the GPUs that train, as if they also generated.
#
# NEVER RUN ON A GPU: composed and checked by a test on the CPU, where SHRINK=1 runs it.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
OWN_KNOBS="ROLLOUT_GPUS ROLLOUT_NODES WARMUP_BATCHES" begin_variation prime/run_eurus2-7b_fsdp.sh "$@"
export N_GPUS=${N_GPUS:-4}
# The policy's states stay on the devices, which leaves no room for larger passes.
export TOKENS_PER_GPU=${TOKENS_PER_GPU:-$((${MAX_PROMPT:-1024} + ${MAX_RESPONSE:-3072}))}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_separate_async_${VARIANT:-prime}}
if [[ "${SHRINK:-0}" != 0 ]]; then
    # A batch of 4 prompts in updates of 2; one rank and one server, and weights that do not go
    # through NCCL.
    devices=(trainer.v1.separate_async.parameter_sync_step=2 actor_rollout_ref.rollout.nnodes=1
        actor_rollout_ref.rollout.n_gpus_per_node=1 actor_rollout_ref.rollout.checkpoint_engine.backend=tcp
        ray_kwargs.ray_init.num_gpus=2)
else
    devices=(trainer.v1.separate_async.parameter_sync_step=4 actor_rollout_ref.rollout.nnodes="${ROLLOUT_NODES:-1}"
        actor_rollout_ref.rollout.n_gpus_per_node="${ROLLOUT_GPUS:-4}"
        actor_rollout_ref.rollout.checkpoint_engine.backend=nccl)
fi
exec bash "$RUN" \
    trainer.v1.trainer_mode=prime_separate_async \
    trainer.v1.separate_async.num_warmup_batches="${WARMUP_BATCHES:-1}" \
    actor_rollout_ref.hybrid_engine=false \
    actor_rollout_ref.actor.fsdp_config.{param,optimizer}_offload=false \
    algorithm.rollout_correction.rollout_is=token \
    algorithm.rollout_correction.rollout_is_threshold=2.0 \
    trainer.experiment_name=eurus2_7b_separate_async \
    "${devices[@]}" \
    "$@"
