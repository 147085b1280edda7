#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An agent with a tool, from nothing to a trained model on a machine without an accelerator (2
# cores, 8 GB, about 15 minutes).
#
#   bash recipes/agent_quickstart_cpu.sh                  everything into outputs/agent_quickstart
#   bash recipes/agent_quickstart_cpu.sh variant=guarded  further words are overrides of verl's configuration
#
# The agent calls a calculator that sometimes fails (recipes/agent/calculator_task.py). Phases,
# knobs and resumption are as in recipes/quickstart_cpu.sh.
set -euo pipefail

# shellcheck source=recipes/quickstart/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/quickstart/phases.sh"
OUT="${OUT:-$ROOT/outputs/agent_quickstart}"       # folder of the run
SEED="${SEED:-0}"                                  # of warm start, order of the problems, sampling
MEAN_ERROR="${MEAN_ERROR:-0.35}"                   # how often the demonstrators of the warm start are wrong, per operation
TEST_SIZE="${TEST_SIZE:-1000}"                     # held-out problems
SFT_STEPS="${SFT_STEPS:-1000}"                     # warm start: optimizer steps
STEPS="${STEPS:-60}"                               # training steps
PROMPTS="${PROMPTS:-16}"                           # problems per step, after the filter
ROLLOUTS="${ROLLOUTS:-4}"                          # episodes per problem
LR="${LR:-4e-4}"                                   # learning rate of the policy
LR_WARMUP="${LR_WARMUP:-10}"                       # steps
PRM_LR="${PRM_LR:-2e-3}"                           # learning rate of the process reward model
PRM_MINI_BATCH="${PRM_MINI_BATCH:-4}"              # problems per update of the process reward model
BETA="${BETA:-1.0}"                                # of the process reward
TEST_FREQ="${TEST_FREQ:--1}"                       # steps between verl's own validations; -1: none
SAVE_FREQ="${SAVE_FREQ:-20}"                       # steps between checkpoints
KNOBS=(SEED MEAN_ERROR TEST_SIZE SFT_STEPS STEPS PROMPTS ROLLOUTS LR LR_WARMUP PRM_LR PRM_MINI_BATCH BETA TEST_FREQ
  SAVE_FREQ)

start_run "$@"
# All overrides of the training are in recipes/agent/train.sh.
data_to_report agent play "$@"
