#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The training run of the PSPO-WRS quickstart and of the length study: through verl, on the CPU.
#
#   bash recipes/pspo_wrs/train_cpu.sh RUN_DIR DATA_DIR MODEL STEP_RM [verl overrides ...]
#
# Knobs (environment): SEED STEPS PROMPTS ROLLOUTS LR LR_WARMUP KL SAVE_FREQ KEEP MAX_RESPONSE_LENGTH PYTHON
# Shaping and accumulation are those of PSPO-WRS, unless chain@prime.process=plain, cn_ppo or pspo_released
# is given.
# Started again, it resumes from the last checkpoint of RUN_DIR.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 4 "" "$@"
RUN_DIR=$1 DATA_DIR=$2 MODEL=$3 STEP_RM=$4
shift 4
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
export TORCH_COMPILE_DISABLE=1
export VERL_PLATFORM=cpu OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
export VERL_FILE_LOGGER_PATH="$RUN_DIR/metrics.jsonl" TENSORBOARD_DIR="$RUN_DIR/tensorboard"

# This is not the paper's PPO: leave-one-out baselines need no critic, which would spend its first
# hundred steps on learning values. There is one update per step on fresh rollouts, so the ratio is
# 1 and the clip never acts. The KL penalty is in the reward, as in the paper, with a fixed
# coefficient. Sampling and scoring use float64: in float32, rounding depends on the requests that
# happen to share a batch, and would change tokens and rewards, so that no run could be repeated.
exec "$PYTHON" -m prime_ext.train --config-name=pspo_trainer_cpu \
    hydra.run.dir="$RUN_DIR/hydra" \
    data.train_files="$DATA_DIR/train.parquet" \
    data.val_files="$DATA_DIR/val.parquet" \
    data.seed="${SEED:-0}" \
    data.train_batch_size="${PROMPTS:-16}" \
    data.max_prompt_length=24 \
    data.max_response_length="${MAX_RESPONSE_LENGTH:-80}" \
    "+reward.custom_reward_function.reward_kwargs.sources={prime_ext/last_digit_chain: math}" \
    algorithm.adv_estimator=rloo \
    prime.process.estimator=rloo \
    prime.whitening=false \
    algorithm.kl_ctrl.type=fixed \
    algorithm.kl_ctrl.kl_coef="${KL:-0.01}" \
    'prime.steps={pattern: "(?<=;)\d"}' \
    step_scorer.model_path="$STEP_RM" \
    step_scorer.dtype=float64 \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.rollout.dtype=float64 \
    actor_rollout_ref.rollout.n="${ROLLOUTS:-8}" \
    actor_rollout_ref.rollout.seed="${SEED:-0}" \
    actor_rollout_ref.actor.ppo_epochs=1 \
    actor_rollout_ref.actor.ppo_mini_batch_size="${PROMPTS:-16}" \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.optim.lr="${LR:-5e-4}" \
    actor_rollout_ref.actor.optim.lr_warmup_steps="${LR_WARMUP:-5}" \
    actor_rollout_ref.actor.optim.betas=[0.9,0.99] \
    trainer.logger=[console,tensorboard,file] \
    trainer.experiment_name=pspo_wrs_cpu \
    trainer.default_local_dir="$RUN_DIR/checkpoints" \
    trainer.val_before_train=false \
    trainer.test_freq=-1 \
    trainer.save_freq="${SAVE_FREQ:-20}" \
    trainer.max_actor_ckpt_to_keep="${KEEP:-2}" \
    trainer.total_epochs=1000 \
    trainer.total_training_steps="${STEPS:-60}" \
    "$@"
