#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The training run of the agent, through verl, on the CPU: the quickstart's, with verl's tool agent
# loop.
#
#   bash recipes/agent/train.sh RUN_DIR DATA_DIR MODEL [verl overrides ...]
#
# Knobs (environment): those of recipes/quickstart/train.sh.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 3 "" "$@"
RUN_DIR=$1 DATA_DIR=$2 MODEL=$3
shift 3
here=$PROJECT_ROOT/recipes/agent
mapfile -t rollout < "$here/rollout.txt"
export MAX_PROMPT_LENGTH=16 MAX_RESPONSE_LENGTH=200 DATA_SOURCE=prime_ext/calculator_chain
# The held-out problems are the only validation set.
exec bash "$PROJECT_ROOT/recipes/quickstart/train.sh" "$RUN_DIR" "$DATA_DIR" "$MODEL" \
    data.val_files="$DATA_DIR/test.parquet" \
    "${rollout[@]}" \
    actor_rollout_ref.rollout.multi_turn.tool_config_path="$here/tools.yaml" \
    "$@"
