#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME on GSM8K with any Hugging Face chat model.
#
#   bash recipes/prime_gsm8k.sh MODEL_PATH [verl overrides ...]
#   bash recipes/prime_gsm8k.sh Qwen/Qwen3-0.6B
#   THINKING=true MAX_RESPONSE=8192 bash recipes/prime_gsm8k.sh Qwen/Qwen3-1.7B
#
# THINKING: true or false for models that think or not (Qwen3); empty for their template's default.
# It is false for Qwen3, whose thoughts MAX_RESPONSE=1024 would cut off.
# Run hf download MODEL first, because workers that wait for a download stop after half an hour.
# On a node with GPUs the defaults train with FSDP and vLLM. DEVICE=cpu runs the same recipe on the
# CPU with a small batch, to try it out. DRY_RUN=1 prints memory, time and disk space instead,
# SHRINK=1 makes two steps with a tiny untrained model on the CPU. Run again after an interruption,
# it resumes from the last checkpoint.
# recipes/prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh is the same with the sizes of verl's published
# example, for a single GPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/head.sh"
begin 1 "DEVICE OUTPUT_DIR GSM8K_DIR N_GPUS TRAIN_BATCH MINI_BATCH N_ROLLOUTS MAX_PROMPT MAX_RESPONSE POLICY_LR PRM_LR
    BETA EPOCHS STEPS SAVE_FREQ TEST_FREQ KEEP TOKENS_PER_GPU ROLLOUT_MEMORY OFFLOAD (GPUs only) THINKING $RUN_KNOBS" "$@"
MODEL_PATH=$1
shift

DEVICE=${DEVICE:-cuda}
THINKING=${THINKING-$([[ "$MODEL_PATH" != *Qwen3-*B ]] || echo false)}
case "$THINKING" in
    "") CHAT=() ;;
    true | false) CHAT=(++data.apply_chat_template_kwargs.enable_thinking="$THINKING") ;;
    *) echo "prime_gsm8k.sh: THINKING=$THINKING must be true, false or empty" >&2; exit 2 ;;
esac
# Folder with the official train.jsonl and test.jsonl; empty: from the Hugging Face hub.
GSM8K_DIR=${GSM8K_DIR:-}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/gsm8k}
[[ "${SHRINK:-0}" == 0 ]] || OUTPUT_DIR=$OUTPUT_DIR/shrunk
N_ROLLOUTS=${N_ROLLOUTS:-4}
MAX_PROMPT=${MAX_PROMPT:-512}
BETA=${BETA:-0.05}
EPOCHS=${EPOCHS:-15}
STEPS=${STEPS:-null}

if [[ "$DEVICE" == "cpu" ]]; then
    CONFIG=prime_trainer_cpu
    N_GPUS=${N_GPUS:-1}
    TRAIN_BATCH=${TRAIN_BATCH:-4}
    MINI_BATCH=${MINI_BATCH:-4}
    MAX_RESPONSE=${MAX_RESPONSE:-192}
    # Logits of a large vocabulary fill the memory: one of the longest rollouts per forward pass.
    DEVICE_OVERRIDES=(
        data.val_max_samples=16
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((MAX_PROMPT + MAX_RESPONSE))
    )
else
    CONFIG=prime_trainer
    N_GPUS=${N_GPUS:-8}
    TRAIN_BATCH=${TRAIN_BATCH:-256}
    MINI_BATCH=${MINI_BATCH:-64}
    MAX_RESPONSE=${MAX_RESPONSE:-1024}
    # Eight GPUs or more hold the states of a small model; with fewer GPUs, or a larger model, the
    # states wait on the host.
    OFFLOAD=${OFFLOAD:-$([[ "$N_GPUS" -ge 8 && "$MODEL_PATH" == *0.[56][Bb]* ]] && echo false || echo true)}
    DEVICE_OVERRIDES=(
        actor_rollout_ref.actor.use_dynamic_bsz=true
        actor_rollout_ref.actor.fsdp_config.param_offload="$OFFLOAD"
        actor_rollout_ref.actor.fsdp_config.optimizer_offload="$OFFLOAD"
        actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.tensor_model_parallel_size=1
        actor_rollout_ref.rollout.gpu_memory_utilization="${ROLLOUT_MEMORY:-0.6}"
    )
    # FSDP1 does not shard on one rank, so it is refused there.
    [[ "$N_GPUS" != 1 ]] || DEVICE_OVERRIDES+=(actor_rollout_ref.actor.strategy=fsdp2)
    [[ -z "${TOKENS_PER_GPU:-}" ]] || DEVICE_OVERRIDES+=(actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$TOKENS_PER_GPU")
fi
POLICY_LR=${POLICY_LR:-1e-6}
PRM_LR=${PRM_LR:-1e-6}
SAVE_FREQ=${SAVE_FREQ:-20}
TEST_FREQ=${TEST_FREQ:-20}
# Checkpoints; null keeps all.
KEEP=${KEEP:-2}

# shellcheck source=recipes/launch.sh
source "$PROJECT_ROOT/recipes/launch.sh"
export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"
DATA=$OUTPUT_DIR/data
if ! rehearsal && [[ ! -f "$DATA/train.parquet" || ! -f "$DATA/test.parquet" ]]; then
    INPUT=()
    [[ -z "$GSM8K_DIR" ]] || INPUT=(--input "gsm8k:train=$GSM8K_DIR/train.jsonl" "gsm8k:test=$GSM8K_DIR/test.jsonl")
    # No system prompt: MODEL_PATH may be any chat model. No rules: the set as published, except for
    # training problems that repeat another one or give away a test problem; DATA/report.md lists
    # them.
    "$PYTHON" -m data_preprocessing.pipeline "$PROJECT_ROOT/data_preprocessing/settings/gsm8k_math.yaml" \
        sources.math=null system_prompt=none 'stages.math_rules.rules=[]' 'stages.decontaminate.tasks=[]' \
        "${INPUT[@]}" --output-dir "$DATA"
fi

dry_run || mkdir -p "$OUTPUT_DIR"
export VERL_FILE_LOGGER_PATH="$OUTPUT_DIR/metrics.jsonl" TENSORBOARD_DIR="$OUTPUT_DIR/tensorboard"
launch "$CONFIG" \
    variant=guarded \
    data.train_files="$DATA/train.parquet" \
    data.val_files="$DATA/test.parquet" \
    data.train_batch_size="$TRAIN_BATCH" \
    data.max_prompt_length="$MAX_PROMPT" \
    data.max_response_length="$MAX_RESPONSE" \
    data.filter_overlong_prompts=true \
    "${CHAT[@]}" \
    actor_rollout_ref.model.path="$MODEL_PATH" \
    actor_rollout_ref.actor.ppo_mini_batch_size="$MINI_BATCH" \
    actor_rollout_ref.actor.optim.lr="$POLICY_LR" \
    actor_rollout_ref.rollout.n="$N_ROLLOUTS" \
    prm.beta="$BETA" \
    prm.optim.lr="$PRM_LR" \
    trainer.logger='[console,file,tensorboard]' \
    trainer.experiment_name=gsm8k \
    trainer.n_gpus_per_node="$N_GPUS" \
    trainer.total_epochs="$EPOCHS" \
    trainer.total_training_steps="$STEPS" \
    trainer.save_freq="$SAVE_FREQ" \
    trainer.test_freq="$TEST_FREQ" \
    trainer.max_actor_ckpt_to_keep="$KEEP" \
    trainer.default_local_dir="$OUTPUT_DIR/checkpoints" \
    "${DEVICE_OVERRIDES[@]}" \
    "$@"
