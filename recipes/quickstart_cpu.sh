#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME-D from nothing to a trained model on a machine without an accelerator (2 cores, 4 GB, 5 to 8
# minutes).
#
#   bash recipes/quickstart_cpu.sh                        everything into outputs/quickstart
#   OUT=outputs/seed1 SEED=1 bash recipes/quickstart_cpu.sh
#   bash recipes/quickstart_cpu.sh prm.update_mode=after  further words are overrides of verl's configuration
#
# Environment -> data -> warm start -> evaluation -> training through verl -> export -> evaluation ->
# report. Complete phases are skipped, and the training resumes from its last checkpoint: after an
# interruption, run the same command again. Other settings need another OUT. The knobs are the
# environment variables below.
set -euo pipefail

# shellcheck source=recipes/quickstart/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/quickstart/phases.sh"
OUT="${OUT:-$ROOT/outputs/quickstart}"             # folder of the run
SEED="${SEED:-0}"                                  # of warm start, order of the problems, sampling
MEAN_ERROR="${MEAN_ERROR:-0.25}"                   # how often the demonstrators of the warm start are wrong, per step
TEST_SIZE="${TEST_SIZE:-2000}"                     # held-out problems
SFT_STEPS="${SFT_STEPS:-1000}"                     # warm start: optimizer steps
STEPS="${STEPS:-80}"                               # training steps
PROMPTS="${PROMPTS:-16}"                           # problems per step, after the filter
ROLLOUTS="${ROLLOUTS:-4}"                          # samples per problem
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
# All overrides of the training are in recipes/quickstart/train.sh.
data_to_report quickstart evaluate "$@"
