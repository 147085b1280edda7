#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real pretrained model on a CPU, or with DEVICE=cuda on one GPU: SmolLM2-135M-Instruct on short
# sums. The few steps of the default show the path and its cost; they are not evidence of anything.
#
#   bash recipes/pretrained.sh [verl overrides ...]             variant=guarded, or the default of the trainer
#   MODEL=/path/to/chat-model bash recipes/pretrained.sh        another model
#
# Writes OUT/{model,data,checkpoints,metrics.jsonl}. Started again, it resumes from its last
# checkpoint.
# Knobs (environment): DEVICE OUT MODEL STEPS PROMPTS ROLLOUTS LR PRM_LR PRM_MINI_BATCH MAX_RESPONSE
# VALIDATION TEST_FREQ PYTHON
set -euo pipefail

DEVICE=${DEVICE:-cpu}
# On a GPU no environment is made: it uses that of pip install -e ".[gpu]".
[[ "$DEVICE" == cpu ]] || PYTHON=${PYTHON:-python3}
# shellcheck source=recipes/cpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/cpu.sh"
OUT=${OUT:-outputs/pretrained}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
STEPS=${STEPS:-3}
if [[ -z "${MODEL:-}" ]]; then
    MODEL=$OUT/model
    if [[ ! -e "$MODEL/config.json" ]]; then
        need gguf "gguf>=0.19"
        "$PYTHON" -m recipes.pretrained.fetch --output-dir "$MODEL"
    fi
fi
if [[ ! -e "$OUT/data/test.parquet" ]]; then
    need reasoning_gym "reasoning-gym==0.1.25"
    # The last number counts, because a small chat model does not box its answers yet.
    "$PYTHON" -m data_preprocessing.reasoning_gym chain_sum --set max_terms=3 max_digits=1 extraction=lenient \
        --prompt question --output-dir "$OUT/data"
fi

if [[ "$DEVICE" == cpu ]]; then
    export VERL_PLATFORM=cpu TORCH_COMPILE_DISABLE=1
    # Unlike the models of other recipes, this one is large enough for threads.
    OMP_NUM_THREADS=$(getconf _NPROCESSORS_ONLN)
    config=prime_trainer_cpu
    # Longest prompt and response in one forward pass: the logits of 49,152 tokens of the vocabulary
    # fill the memory.
    machine=(actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024)
else
    config=prime_trainer
    machine=(
        trainer.n_gpus_per_node=1
        actor_rollout_ref.actor.strategy=fsdp2
        actor_rollout_ref.actor.use_dynamic_bsz=true
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
        actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.tensor_model_parallel_size=1
        actor_rollout_ref.rollout.gpu_memory_utilization=0.2
        actor_rollout_ref.rollout.enforce_eager=true
    )
    "$PYTHON" -c 'import flash_attn' 2> /dev/null \
        || machine+=(+actor_rollout_ref.model.override_config.attn_implementation=sdpa)
fi
export RAY_USAGE_STATS_ENABLED=0
export VERL_FILE_LOGGER_PATH="$OUT/metrics.jsonl"
"$PYTHON" -m prime_ext.train --config-name="$config" "${machine[@]}" \
    hydra.run.dir="$OUT/hydra" \
    data.train_files="$OUT/data/train.parquet" \
    data.val_files="$OUT/data/test.parquet" \
    data.val_max_samples="${VALIDATION:-64}" \
    data.train_batch_size="${PROMPTS:-16}" \
    data.max_prompt_length=96 \
    data.max_response_length="${MAX_RESPONSE:-32}" \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.rollout.n="${ROLLOUTS:-4}" \
    actor_rollout_ref.rollout.val_kwargs.do_sample=true \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size="${PROMPTS:-16}" \
    actor_rollout_ref.actor.optim.lr="${LR:-2e-6}" \
    prm.mini_batch_size="${PRM_MINI_BATCH:-4}" \
    prm.optim.lr="${PRM_LR:-6e-6}" \
    trainer.logger='[console,file]' \
    trainer.experiment_name=pretrained \
    trainer.default_local_dir="$OUT/checkpoints" \
    trainer.val_before_train=true \
    trainer.test_freq="${TEST_FREQ:-$STEPS}" \
    trainer.save_freq="$STEPS" \
    trainer.total_epochs=1000 \
    trainer.total_training_steps="$STEPS" \
    "$@"
