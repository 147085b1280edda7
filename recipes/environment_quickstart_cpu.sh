#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An agent in an environment, from nothing to a trained model on a machine without an accelerator (2
# cores, 8 GB).
#
#   bash recipes/environment_quickstart_cpu.sh                  everything into outputs/environment_quickstart
#   bash recipes/environment_quickstart_cpu.sh variant=rloo     further words are overrides of verl's configuration
#
# The agent plays a game of numbers (prime_ext/environments/number_path.py). Phases, knobs and
# resumption are as in recipes/quickstart_cpu.sh.
set -euo pipefail

# shellcheck source=recipes/quickstart/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/quickstart/phases.sh"
OUT="${OUT:-$ROOT/outputs/environment_quickstart}" # folder of the run
SEED="${SEED:-0}"                                  # of episodes, warm start, order of the episodes, sampling
MEAN_ERROR="${MEAN_ERROR:-0.45}"                   # how often the demonstrators of the warm start are wrong
TRAIN_SIZE="${TRAIN_SIZE:-256}"                    # episodes to train on
TEST_SIZE="${TEST_SIZE:-128}"                      # held-out episodes
SFT_STEPS="${SFT_STEPS:-250}"                      # warm start: optimizer steps
STEPS="${STEPS:-20}"                               # training steps
PROMPTS="${PROMPTS:-16}"                           # episodes per step, after the filter
ROLLOUTS="${ROLLOUTS:-4}"                          # rollouts of each episode
LR="${LR:-4e-4}"                                   # learning rate of the policy
LR_WARMUP="${LR_WARMUP:-10}"                       # steps
PRM_LR="${PRM_LR:-2e-3}"                           # learning rate of the process reward model
PRM_MINI_BATCH="${PRM_MINI_BATCH:-4}"              # episodes per update of the process reward model
BETA="${BETA:-1.0}"                                # of the process reward
TEST_FREQ="${TEST_FREQ:--1}"                       # steps between verl's own validations; -1: none
SAVE_FREQ="${SAVE_FREQ:-20}"                       # steps between checkpoints
KNOBS=(SEED MEAN_ERROR TRAIN_SIZE TEST_SIZE SFT_STEPS STEPS PROMPTS ROLLOUTS LR LR_WARMUP PRM_LR PRM_MINI_BATCH BETA
  TEST_FREQ SAVE_FREQ)

start_run "$@"
make_data() {
  local name
  name="$("$PYTHON" -c 'from recipes.environment.number_path_task import NAME; print(NAME)')"
  "$PYTHON" -m data_preprocessing.environment "$name" --size "$TRAIN_SIZE" --test-size "$TEST_SIZE" --seed "$SEED" \
    --output-dir "$OUT/data"
  "$PYTHON" -m recipes.environment.environment_data --output-dir "$OUT/data" --seed "$SEED" --mean-error "$MEAN_ERROR"
}
# All overrides of the training are in recipes/environment/train.sh.
data_to_report environment play "$@"
