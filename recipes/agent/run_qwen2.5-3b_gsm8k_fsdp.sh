#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An agent with Python as its tool on GSM8K: Qwen2.5-3B-Instruct, on 8 GPUs of 80 GB or one.
#
#   bash recipes/agent/run_qwen2.5-3b_gsm8k_fsdp.sh [verl overrides ...]
#   N_GPUS=1 MODEL_PATH=Qwen/Qwen3-4B bash recipes/agent/run_qwen2.5-3b_gsm8k_fsdp.sh
#   TOOLS=my_tools.yaml bash recipes/agent/run_qwen2.5-3b_gsm8k_fsdp.sh        # other tools, a search for instance
#   DRY_RUN=1 N_GPUS=1 bash recipes/agent/run_qwen2.5-3b_gsm8k_fsdp.sh         # memory, time and disk space, without a GPU
#
# This is the run of recipes/prime_gsm8k.sh, and it takes the same knobs. Programs run in this
# package's sandbox (python -m prime_ext.doctor checks whether the machine can confine them). A call
# of a tool may take 60 seconds; docs/explanation/turns.md shows how to change that.
# verl 0.9.1's wheel has the loop and the parsers of tool calls, but no tools.
#
# NEVER RUN ON A GPU: composed, checked and planned by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
OWN_KNOBS="MODEL_PATH TOOLS"
begin_variation prime_gsm8k.sh "$@"

export TRAIN_BATCH=${TRAIN_BATCH:-64} MINI_BATCH=${MINI_BATCH:-64} STEPS=${STEPS:-200} EPOCHS=${EPOCHS:-100}
# The prompt includes the descriptions of tools, the response their answers.
export MAX_PROMPT=${MAX_PROMPT:-1024} MAX_RESPONSE=${MAX_RESPONSE:-2048} TOKENS_PER_GPU=${TOKENS_PER_GPU:-8192}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/agent_qwen2.5_3b_gsm8k}
exec bash "$RUN" "${MODEL_PATH:-Qwen/Qwen2.5-3B-Instruct}" \
    prime/process=steps \
    prime.process.granularity=turn \
    actor_rollout_ref.rollout.agent.default_agent_loop=bounded_tool_agent \
    actor_rollout_ref.rollout.multi_turn.format=hermes \
    actor_rollout_ref.rollout.multi_turn.tool_config_path="${TOOLS:-$PROJECT_ROOT/recipes/agent/python_tool.yaml}" \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=6 \
    actor_rollout_ref.rollout.multi_turn.max_tool_response_length=1024 \
    trainer.experiment_name=agent_qwen2.5_3b_gsm8k "$@"
