#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME-D on GSM8K with verl's own command and the plug-in prime-ext.
#
#   bash run_prime_gsm8k.sh MODEL TRAIN.parquet TEST.parquet [verl overrides ...]
#
# Knob (environment): VARIANT (distilled)
set -euo pipefail
if [[ $# -lt 3 ]]; then
    sed -n '3,7p' "${BASH_SOURCE[0]}" | cut -c3-
    [[ "${1:-}" == "--help" ]] && exit 0 || exit 2
fi
MODEL=$1 TRAIN=$2 TEST=$3
shift 3
VERL_USE_EXTERNAL_MODULES="prime_ext.plugin${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES}" exec python -m verl.trainer.main_ppo \
    --config-path=pkg://prime_ext.config --config-name=prime_trainer \
    variant="${VARIANT:-distilled}" \
    data.train_files="$TRAIN" data.val_files="$TEST" data.train_batch_size=256 \
    data.max_prompt_length=512 data.max_response_length=1024 data.filter_overlong_prompts=true \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \
    prm.optim.lr=1e-6 \
    trainer.total_epochs=15 trainer.project_name=prime trainer.experiment_name=gsm8k \
    "$@"
