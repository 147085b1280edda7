#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run of a method on the laboratory's task `compact` through verl, on the CPU: the laboratory's settings.
#
#   bash recipes/studies/compact.sh RUN_DIR DATA_DIR MODEL [verl overrides ...]
#
# recipes.studies.run starts it. Knobs (environment): SEED STEPS LR PRM_LR SAVE_FREQ PYTHON
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 3 "" "$@"
RUN_DIR=$1 DATA_DIR=$2 MODEL=$3
shift 3
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
export VERL_PLATFORM=cpu OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
export TORCH_COMPILE_DISABLE=1 VERL_FILE_LOGGER_PATH="$RUN_DIR/metrics.jsonl"

# 20 prompts with 4 responses in 5 updates, no filter.
exec "$PYTHON" -m prime_ext.train --config-name=prime_trainer_cpu \
    variant=distilled \
    hydra.run.dir="$RUN_DIR/hydra" \
    data.train_files="$DATA_DIR/train.parquet" \
    data.val_files="$DATA_DIR/val.parquet" \
    data.seed="${SEED:-0}" \
    data.train_batch_size=20 \
    data.max_prompt_length=12 \
    data.max_response_length=18 \
    "+reward.custom_reward_function.reward_kwargs.modules=[recipes.lab.tasks]" \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.seed="${SEED:-0}" \
    actor_rollout_ref.rollout.val_kwargs.do_sample=true \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \
    actor_rollout_ref.actor.optim.lr="${LR:-6e-4}" \
    actor_rollout_ref.actor.optim.lr_warmup_steps=2 \
    actor_rollout_ref.actor.optim.betas=[0.9,0.99] \
    actor_rollout_ref.actor.optim.weight_decay=0.01 \
    prime.filter.enable=false \
    prm.mini_batch_size=4 \
    prm.optim.lr="${PRM_LR:-2e-3}" \
    prm.optim.betas=[0.9,0.99] \
    prm.optim.lr_warmup_steps=4 \
    trainer.logger=[console,file] \
    trainer.default_local_dir="$RUN_DIR/checkpoints" \
    trainer.val_before_train=true \
    trainer.test_freq="${SAVE_FREQ:-3}" \
    trainer.save_freq="${SAVE_FREQ:-3}" \
    trainer.max_actor_ckpt_to_keep="${KEEP:-1}" \
    trainer.total_epochs=1000 \
    trainer.total_training_steps="${STEPS:-36}" \
    "$@"
