#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PSPO-WRS on GPUs, 3 of 3: PPO on the rewards of the step reward model (arXiv 2411.11681).
#
#   bash recipes/pspo_wrs/run_abel-7b_ppo_fsdp.sh POLICY STEP_RM TRAIN_PARQUET VAL_PARQUET [verl overrides ...]
#   SFT=outputs/pspo_wrs/sft/checkpoints/global_step_N/huggingface
#   bash recipes/pspo_wrs/run_abel-7b_ppo_fsdp.sh $SFT outputs/pspo_wrs/step_rm/model train.parquet test.parquet
#
# The settings of the released code: PPO with a critic, gamma 1, lambda .95, four passes over each
# batch, rate 1.41e-5, 8 responses per GPU and step, one response per prompt, temperature 1, 512 new
# tokens, KL penalty in the reward (.2, adaptive, target 6). Gold answers are not used.
# VARIANT, the reward from the steps' scores: weibull (default: geometric mean times Weibull, the
#   paper), released (the function in the repository), cn_ppo (the predecessor: Gaussian, first step
#   times .2), gaussian (without that weight), first_weight (Weibull with it); without shaping
#   geometric, mean, min; plain (each step is paid separately).
# recipes/pspo_wrs/README.md has the settings with their sources, and differences from the paper.
# Other estimators: algorithm.adv_estimator=rloo prime.process.estimator=grpo actor_rollout_ref.rollout.n=8,
# and so on.
# GPUs: N_GPUS (4) train and generate, and one more on each node is for the step reward model
# (SCORER_GPUS=1). Without one to spare, SCORER_GPUS=0 puts it on SCORER_THREADS (16) CPU threads of
# each node, which is slow for a BERT-large; or SCORER=URL queries a server (vllm serve STEP_RM
# --runner pooling), and no node loads the model.
# DRY_RUN=1 prints memory, time and disk space instead of training; SHRINK=1 makes two steps with
# tiny untrained models on the CPU.
# After an interruption, the same command resumes from its last checkpoint.
#
# NEVER RUN ON A GPU: composed and checked by a test on the CPU; the same trainer, with the CPU's
# configuration, runs in recipes/pspo_quickstart_cpu.sh.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 4 "VARIANT CHAT_TEMPLATE OUTPUT_DIR N_GPUS TRAIN_BATCH MINI_BATCH LR CRITIC_LR KL LORA LORA_ALPHA MAX_PROMPT MAX_RESPONSE
    EPOCHS STEPS SAVE_FREQ TEST_FREQ VAL_FIRST SCORER SCORER_GPUS SCORER_THREADS $RUN_KNOBS" "$@"
POLICY=$1 STEP_RM=$2 TRAIN=$3 VAL=$4
shift 4
# shellcheck source=recipes/launch.sh
source "$PROJECT_ROOT/recipes/launch.sh"
VARIANT=${VARIANT:-weibull}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/pspo_wrs/ppo_$VARIANT}
! shrink || OUTPUT_DIR=$OUTPUT_DIR/shrunk
N_GPUS=${N_GPUS:-4}
TRAIN_BATCH=${TRAIN_BATCH:-$((8 * N_GPUS))}
LORA=${LORA:-0}
LR=${LR:-1.41e-5}
# GPUs that Ray reserves for the step reward model on each node; may be a fraction. 0: it runs on
# the CPU.
SCORER_GPUS=${SCORER_GPUS:-1}

case "$VARIANT" in
    weibull) options=() ;;
    released) options=(chain@prime.process=pspo_released) ;;
    cn_ppo) options=(chain@prime.process=cn_ppo) ;;
    gaussian) options=(chain@prime.process=cn_ppo prime.process.accumulation.first_weight=1.0) ;;
    first_weight) options=(prime.process.accumulation.first_weight=0.2) ;;
    geometric | mean | min) options=(prime.process.shaping=null prime.process.accumulation.mode="$VARIANT") ;;
    plain) options=(chain@prime.process=plain) ;;
    *) echo "run_abel-7b_ppo_fsdp.sh: VARIANT=$VARIANT is unknown; -h lists them" >&2; exit 2 ;;
esac
if ((LORA)); then
    # Only the policy has an adapter. verl 0.9.1 makes a critic's adapter for a causal model, which
    # peft refuses, and looks for an adapter in a critic that has none. So adapters need estimators
    # without a critic.
    options+=(actor_rollout_ref.model.lora_rank="$LORA" actor_rollout_ref.model.lora_alpha="${LORA_ALPHA:-32}")
    options+=(actor_rollout_ref.model.target_modules=all-linear actor_rollout_ref.rollout.load_format=safetensors)
fi
if [[ -n "${SCORER:-}" ]]; then
    options+=(step_scorer=server step_scorer.address="$SCORER")
elif ! shrink; then
    options+=(step_scorer.actor.num_gpus="$SCORER_GPUS")
    [[ "$SCORER_GPUS" != 0 ]] || options+=(step_scorer.actor.cpu_threads="${SCORER_THREADS:-16}")
fi

export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"
dry_run || mkdir -p "$OUTPUT_DIR"
export VERL_FILE_LOGGER_PATH="$OUTPUT_DIR/metrics.jsonl" TENSORBOARD_DIR="$OUTPUT_DIR/tensorboard"
template actor_rollout_ref.model "$POLICY"
launch pspo_trainer \
    data.train_files="$TRAIN" \
    data.val_files="$VAL" \
    data.train_batch_size="$TRAIN_BATCH" \
    data.max_prompt_length="${MAX_PROMPT:-512}" \
    data.max_response_length="${MAX_RESPONSE:-512}" \
    data.filter_overlong_prompts=true \
    algorithm.kl_ctrl.kl_coef="${KL:-0.2}" \
    step_scorer.model_path="$STEP_RM" \
    actor_rollout_ref.model.path="$POLICY" \
    "${TEMPLATE[@]}" \
    actor_rollout_ref.actor.ppo_mini_batch_size="${MINI_BATCH:-$TRAIN_BATCH}" \
    actor_rollout_ref.actor.optim.lr="$LR" \
    actor_rollout_ref.actor.optim.weight_decay=0.0 \
    actor_rollout_ref.actor.fsdp_config.param_offload=true \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=true \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    critic.optim.lr="${CRITIC_LR:-$LR}" \
    critic.optim.weight_decay=0.0 \
    critic.fsdp.param_offload=true \
    critic.fsdp.optimizer_offload=true \
    trainer.logger='[console,file,tensorboard]' \
    trainer.experiment_name="pspo_wrs_$VARIANT" \
    trainer.n_gpus_per_node="$N_GPUS" \
    trainer.total_epochs="${EPOCHS:-1}" \
    trainer.total_training_steps="${STEPS:-null}" \
    trainer.save_freq="${SAVE_FREQ:-50}" \
    trainer.test_freq="${TEST_FREQ:-50}" \
    trainer.val_before_train="${VAL_FIRST:-false}" \
    trainer.max_actor_ckpt_to_keep=2 \
    trainer.max_critic_ckpt_to_keep=2 \
    trainer.default_local_dir="$OUTPUT_DIR/checkpoints" \
    "${options[@]}" \
    "$@"
