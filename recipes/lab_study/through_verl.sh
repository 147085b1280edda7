#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A method of the laboratory on one of its compact tasks, through verl on the CPU.
#
#   python -m recipes.lab_study.run compact rloo --output outputs/lab             # makes the warm start
#   python -m recipes.lab_study.through_verl prepare outputs/lab/compact OUT/inputs
#   bash recipes/lab_study/through_verl.sh METHOD SEED OUT [verl overrides ...]
#   python -m recipes.lab_study.report OUT/compact --accuracies 0.5,0.7,0.8
#
# METHOD: rloo rloo_ema distilled distilled_e4 guarded paper sign_preserving; teacher and teacher_sign_preserving, the one that
# prepare --teacher was given; self_distillation, on the task hinted.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 3 "STEPS LR PRM_LR TEST_FREQ PYTHON" "$@"
METHOD=$1 SEED=$2 OUT=$3
shift 3
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
cd "$PROJECT_ROOT"
TASK=$(cat "$OUT/inputs/task.txt")

signs=(prime.process.form=sign_preserving prime.process.coefficient=0.5 prime.process.clip=0.2 prime.anchor.kind=none)
teacher=(variant=distilled prm.update_mode=none prm.bias.enable=false prm.trainable_layers=null)
teacher+=(prm.model.path="$OUT/inputs/teacher")
case "$METHOD" in
    rloo) method=(variant=paper prime.process.coefficient=0 prm.enable=false) ;;
    rloo_ema) method=(variant=paper prime.process.coefficient=0 prm.enable=false prime.anchor.kind=ema) ;;
    distilled) method=(variant=distilled "prm.optim.lr=${PRM_LR:-2e-3}") ;;
    distilled_e4)
        PRM_LR=${PRM_LR:-1e-3}
        method=(variant=distilled "prm.optim.lr=$PRM_LR" prm.epochs=4 prm.replay.batches=12)
        method+=(prm.reference=frozen prm.trainable_layers=null)
        ;;
    sign_preserving) method=(variant=distilled "prm.optim.lr=${PRM_LR:-2e-3}" "${signs[@]}") ;;
    teacher) method=("${teacher[@]}") ;;
    teacher_sign_preserving) method=("${teacher[@]}" "${signs[@]}") ;;
    self_distillation) method=(variant=self_distillation "prm.inputs.template='{prompt}{extra_info.answer}'") ;;
    guarded | paper) method=("variant=$METHOD" prm.beta=0.2 "prm.optim.lr=${PRM_LR:-1e-3}") ;;
    *)
        echo "through_verl.sh: METHOD=$METHOD is none of those in --help" >&2
        exit 2
        ;;
esac

RUN="$OUT/runs/${METHOD}_seed$SEED"
export VERL_PLATFORM=cpu OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
export TORCH_COMPILE_DISABLE=1 VERL_FILE_LOGGER_PATH="$RUN/metrics.jsonl"
mkdir -p "$RUN"
# 20 prompts with 4 responses in 5 updates, no filter: the laboratory's settings.
"$PYTHON" -m prime_ext.train --config-name=prime_trainer_cpu "${method[@]}" \
    hydra.run.dir="$RUN/hydra" \
    data.train_files="$OUT/inputs/train.parquet" \
    data.val_files="$OUT/inputs/val.parquet" \
    data.seed="$SEED" \
    data.train_batch_size=20 \
    data.max_prompt_length=12 \
    data.max_response_length=18 \
    "+reward.custom_reward_function.reward_kwargs.modules=[recipes.lab_study.through_verl]" \
    actor_rollout_ref.model.path="$OUT/inputs/model" \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.seed="$SEED" \
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
    prm.optim.betas=[0.9,0.99] \
    prm.optim.lr_warmup_steps=4 \
    trainer.logger=[console,file] \
    trainer.default_local_dir="$RUN/checkpoints" \
    trainer.val_before_train=true \
    trainer.test_freq="${TEST_FREQ:-3}" \
    trainer.save_freq="${STEPS:-36}" \
    trainer.total_epochs=1000 \
    trainer.total_training_steps="${STEPS:-36}" \
    "$@"
"$PYTHON" -m recipes.lab_study.through_verl curve "$RUN" "$METHOD" "$SEED" "$OUT/$TASK"
