#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The training run of the quickstart and of the comparison: PRIME-D on the last-digit chains, through
# verl, on the CPU.
#
#   bash recipes/quickstart/train.sh RUN_DIR DATA_DIR MODEL [verl overrides ...]
#
# Knobs (environment): SEED STEPS PROMPTS ROLLOUTS LR LR_WARMUP PRM_LR PRM_MINI_BATCH BETA SAVE_FREQ
#   TEST_FREQ KEEP PYTHON MAX_PROMPT_LENGTH MAX_RESPONSE_LENGTH DATA_SOURCE (of rows that the verifier
#   of mathematics judges) DEVICE (cpu, or cuda: the same run on a GPU)
# Started again, it resumes from the last complete checkpoint of RUN_DIR.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 3 "" "$@"
RUN_DIR=$1 DATA_DIR=$2 MODEL=$3
shift 3
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
export TORCH_COMPILE_DISABLE=1
[[ "${DEVICE:-cpu}" != cpu ]] || export VERL_PLATFORM=cpu
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
export VERL_FILE_LOGGER_PATH="$RUN_DIR/metrics.jsonl" TENSORBOARD_DIR="$RUN_DIR/tensorboard"

source=${DATA_SOURCE-prime_ext/last_digit_chain}
sources=()
[[ -z "$source" ]] || sources=("+reward.custom_reward_function.reward_kwargs.sources={$source: math}")

# There is one policy update per step on fresh rollouts, so the ratio is 1 and the clip never acts.
# The PRM has several updates per step.
exec "$PYTHON" -m prime_ext.train --config-name=prime_trainer_cpu \
    variant=distilled \
    hydra.run.dir="$RUN_DIR/hydra" \
    data.train_files="$DATA_DIR/train.parquet" \
    data.val_files="$DATA_DIR/val.parquet" \
    data.seed="${SEED:-0}" \
    data.train_batch_size="${PROMPTS:-16}" \
    data.max_prompt_length="${MAX_PROMPT_LENGTH:-24}" \
    data.max_response_length="${MAX_RESPONSE_LENGTH:-48}" \
    "${sources[@]}" \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.rollout.n="${ROLLOUTS:-4}" \
    actor_rollout_ref.rollout.seed="${SEED:-0}" \
    actor_rollout_ref.rollout.val_kwargs.do_sample=true \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size="${PROMPTS:-16}" \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \
    actor_rollout_ref.actor.optim.lr="${LR:-4e-4}" \
    actor_rollout_ref.actor.optim.lr_warmup_steps="${LR_WARMUP:-10}" \
    actor_rollout_ref.actor.optim.betas=[0.9,0.99] \
    prm.beta="${BETA:-1.0}" \
    prm.mini_batch_size="${PRM_MINI_BATCH:-4}" \
    prm.optim.lr="${PRM_LR:-2e-3}" \
    prm.optim.betas=[0.9,0.99] \
    trainer.device="${DEVICE:-cpu}" \
    trainer.logger=[console,tensorboard,file] \
    trainer.default_local_dir="$RUN_DIR/checkpoints" \
    trainer.val_before_train=false \
    trainer.test_freq="${TEST_FREQ:--1}" \
    trainer.save_freq="${SAVE_FREQ:-10}" \
    trainer.max_actor_ckpt_to_keep="${KEEP:-2}" \
    trainer.total_epochs=1000 \
    trainer.total_training_steps="${STEPS:-80}" \
    "$@"
