#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME and its ablations (arXiv 2502.01456, section 4, appendix): math and code, 8 GPUs
# of 80 GB.
#
#   bash recipes/prime/run_eurus2-7b_fsdp.sh [verl overrides ...]
#   VARIANT=rloo bash recipes/prime/run_eurus2-7b_fsdp.sh
#   DRY_RUN=1 bash recipes/prime/run_eurus2-7b_fsdp.sh     # memory and disk space, without a GPU
#   SHRINK=1 bash recipes/prime/run_eurus2-7b_fsdp.sh      # two steps on the CPU with a tiny untrained model
#
# VARIANT: prime (default), rloo (no process rewards); grpo, reinforce, ppo and grpo_prime,
#   reinforce_prime, ppo_prime; prm_value (PRM as value function); offline_prm, eurusprm_online;
#   double_forward; dpo; policy_reference; 16_rollouts.
# Variants with a PRM of their own take PRM_PATH and PRM_REFERENCE. README.md in this folder has the
# settings with their sources, the differences from the paper, and the published numbers.
# Models: run hf download MODEL first, because workers that wait for a download stop after half
# an hour.
# Data: TRAIN_FILES and VAL_FILES, parquet as in PRIME-RL/Eurus-2-RL-Data; python -m
# data_preprocessing.validate checks them.
# Code is judged in the sandbox of prime_ext on every node; python -m prime_ext.doctor checks
# whether it works there.
# Several nodes: start Ray on all of them, and this script on one, with NNODES set.
# After an interruption, the same command resumes from its last checkpoint.
#
# NEVER RUN ON A GPU: composed, checked and compared with the paper's settings by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 0 "VARIANT MODEL_PATH PRM_PATH PRM_REFERENCE TRAIN_FILES VAL_FILES OUTPUT_DIR N_GPUS NNODES ROLLOUT_TP
    MAX_PROMPT MAX_RESPONSE TOKENS_PER_GPU INFER_TOKENS_PER_GPU STEPS SAVE_FREQ TEST_FREQ LOGGER ENGINE $RUN_KNOBS" "$@"
# shellcheck source=recipes/launch.sh
source "$PROJECT_ROOT/recipes/launch.sh"

VARIANT=${VARIANT:-prime}
MODEL_PATH=${MODEL_PATH:-PRIME-RL/Eurus-2-7B-SFT}
TRAIN_FILES=${TRAIN_FILES:-data/eurus2_rl/train.parquet}
VAL_FILES=${VAL_FILES:-data/eurus2_rl/validation.parquet}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_$VARIANT}
! shrink || OUTPUT_DIR=$OUTPUT_DIR/shrunk
N_GPUS=${N_GPUS:-8}
NNODES=${NNODES:-1}
ROLLOUT_TP=${ROLLOUT_TP:-1}
MAX_PROMPT=${MAX_PROMPT:-1024}
MAX_RESPONSE=${MAX_RESPONSE:-3072}
# By the plan, the rollout still needs the most memory. The paper's runs: one response of full
# length, 4096.
TOKENS_PER_GPU=${TOKENS_PER_GPU:-$((MAX_PROMPT + MAX_RESPONSE > 16384 ? MAX_PROMPT + MAX_RESPONSE : 16384))}
# Tokens of passes without gradients, which need less: log-probabilities of policy, reference, PRM.
INFER_TOKENS_PER_GPU=${INFER_TOKENS_PER_GPU:-$((TOKENS_PER_GPU > 16384 ? TOKENS_PER_GPU : 16384))}
STEPS=${STEPS:-592}
SAVE_FREQ=${SAVE_FREQ:-16}
TEST_FREQ=${TEST_FREQ:-16}
LOGGER=${LOGGER:-[console,file,tensorboard]}

N_ROLLOUTS=4
no_prm=(prime/process=none)
critic=(algorithm.adv_estimator=gae prime.outcome.estimator=gae critic.model.path="$MODEL_PATH"
    critic.fsdp.param_offload=true critic.fsdp.optimizer_offload=true critic.ppo_max_token_len_per_gpu="$TOKENS_PER_GPU")
case "$VARIANT" in
    prime) options=() ;;
    rloo) options=("${no_prm[@]}") ;;
    grpo) options=("${no_prm[@]}" prime.outcome.estimator=grpo) ;;
    grpo_prime) options=(prime.outcome.estimator=grpo prime.process.estimator=grpo) ;;
    reinforce) options=("${no_prm[@]}" prime.outcome.estimator=reinforce) ;;
    reinforce_prime) options=(prime.outcome.estimator=reinforce prime.process.estimator=reinforce) ;;
    ppo) options=("${no_prm[@]}" "${critic[@]}") ;;
    ppo_prime) options=("${critic[@]}" prime.process.estimator=gae) ;;
    prm_value) options=(prime.outcome.estimator=prm_value prime/process=none) ;;
    offline_prm) options=(prm=frozen) ;;
    eurusprm_online) options=() ;;
    double_forward) options=(prm.update_mode=before) ;;
    dpo) options=(prm.loss=dpo prm.update_mode=after) ;;
    policy_reference) options=(prm.reference=policy) ;;
    16_rollouts) options=() N_ROLLOUTS=16 ;;
    *) echo "run_eurus2-7b_fsdp.sh: VARIANT=$VARIANT is unknown; -h lists them" >&2; exit 2 ;;
esac
if [[ "$VARIANT" == offline_prm || "$VARIANT" == eurusprm_online ]]; then
    PRM_PATH=${PRM_PATH:-PRIME-RL/EurusPRM-Stage2}
    PRM_REFERENCE=${PRM_REFERENCE:-Qwen/Qwen2.5-Math-7B-Instruct}
fi
[[ -z "${PRM_PATH:-}" ]] || options+=(prm.model.path="$PRM_PATH" prm.reference_path="${PRM_REFERENCE:-$PRM_PATH}")

if ! rehearsal; then
    for file in "$TRAIN_FILES" "$VAL_FILES"; do
        [[ -e "$file" || "$file" == \[* ]] || {
            echo "$file does not exist; get the paper's data with: hf download --repo-type dataset PRIME-RL/Eurus-2-RL-Data" \
                "--local-dir data/eurus2_rl, or make your own (docs/reference/data.md) and set TRAIN_FILES and VAL_FILES" >&2
            exit 2
        }
    done
fi
# recipes/multi_node/run_eurus2-7b_megatron.sh sets ENGINE.
case "${ENGINE:-fsdp}" in
    fsdp) offload=(actor_rollout_ref.actor.fsdp_config.{param,optimizer}_offload=true) ;;
    megatron) offload=(model_engine=megatron actor_rollout_ref.actor.megatron.{param,optimizer}_offload=true) ;;
    *) echo "run_eurus2-7b_fsdp.sh: ENGINE=$ENGINE must be fsdp or megatron" >&2; exit 2 ;;
esac
dry_run || mkdir -p "$OUTPUT_DIR"
export VERL_FILE_LOGGER_PATH="$OUTPUT_DIR/metrics.jsonl" TENSORBOARD_DIR="$OUTPUT_DIR/tensorboard"
export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"

# ppo_mini_batch_size counts prompts: 64 prompts are the paper's 256 rollouts, with four updates per
# step.
launch prime_trainer \
    variant=paper \
    data.train_files="$TRAIN_FILES" \
    data.val_files="$VAL_FILES" \
    data.train_batch_size=256 \
    data.max_prompt_length="$MAX_PROMPT" \
    data.max_response_length="$MAX_RESPONSE" \
    data.filter_overlong_prompts=true \
    actor_rollout_ref.model.path="$MODEL_PATH" \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$TOKENS_PER_GPU" \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu="$INFER_TOKENS_PER_GPU" \
    prm.infer_max_token_len_per_gpu="$INFER_TOKENS_PER_GPU" \
    actor_rollout_ref.actor.optim.lr=5e-7 \
    actor_rollout_ref.actor.optim.weight_decay=0.01 \
    "${offload[@]}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n="$N_ROLLOUTS" \
    actor_rollout_ref.rollout.tensor_model_parallel_size="$ROLLOUT_TP" \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    prm.engine.param_offload=true \
    prm.engine.optimizer_offload=true \
    trainer.logger="$LOGGER" \
    trainer.project_name=prime \
    trainer.experiment_name="eurus2_7b_$VARIANT" \
    trainer.n_gpus_per_node="$N_GPUS" \
    trainer.nnodes="$NNODES" \
    trainer.total_epochs=1000 \
    trainer.total_training_steps="$STEPS" \
    trainer.val_before_train=false \
    trainer.save_freq="$SAVE_FREQ" \
    trainer.test_freq="$TEST_FREQ" \
    trainer.max_actor_ckpt_to_keep=2 \
    trainer.default_local_dir="$OUTPUT_DIR/checkpoints" \
    "${options[@]}" \
    "$@"
