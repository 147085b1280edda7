#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The training run in an environment, through verl, on the CPU: the quickstart's, with the loop of
# environments.
#
#   bash recipes/environment/train.sh RUN_DIR DATA_DIR MODEL [verl overrides ...]
#
# Knobs (environment): those of recipes/quickstart/train.sh.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 3 "" "$@"
RUN_DIR=$1 DATA_DIR=$2 MODEL=$3
shift 3
mapfile -t rollout < "$PROJECT_ROOT/recipes/environment/rollout.txt"
# The environment judges, so no verifier has a data source.
export DATA_SOURCE=""
# The held-out episodes are the only validation set.
exec bash "$PROJECT_ROOT/recipes/quickstart/train.sh" "$RUN_DIR" "$DATA_DIR" "$MODEL" \
    data.val_files="$DATA_DIR/test.parquet" \
    "${rollout[@]}" \
    "$@"
