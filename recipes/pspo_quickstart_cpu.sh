#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PSPO-WRS from nothing to a trained policy on a machine without an accelerator (2 cores, 8 GB).
#
#   bash recipes/pspo_quickstart_cpu.sh                        everything into outputs/pspo_quickstart
#   OUT=outputs/seed1 SEED=1 bash recipes/pspo_quickstart_cpu.sh
#   bash recipes/pspo_quickstart_cpu.sh chain@prime.process=cn_ppo   further words are overrides of verl's configuration
#
# Environment -> data -> warm start -> step reward model -> measurement -> PSPO-WRS through verl ->
# export -> measurement -> report. The task is last-digit chains whose writer chooses the number of
# steps. Complete phases are skipped, and trainings resume from their last checkpoints: after an
# interruption, run the same command again. Other settings need another OUT. The knobs are the
# environment variables below.
set -euo pipefail

# shellcheck source=recipes/quickstart/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/quickstart/phases.sh"
# shellcheck source=recipes/pspo_wrs/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/pspo_wrs/phases.sh"
OUT="${OUT:-$ROOT/outputs/pspo_quickstart}"        # folder of the run
SEED="${SEED:-0}"                                  # of data, warm start, step reward model, sampling
SFT_STEPS="${SFT_STEPS:-1200}"                      # warm start: optimizer steps
STEPS="${STEPS:-60}"                               # PSPO-WRS steps
PROMPTS="${PROMPTS:-16}"                           # problems per step
ROLLOUTS="${ROLLOUTS:-8}"                          # samples per problem
LR="${LR:-5e-4}"                                   # learning rate of the policy
LR_WARMUP="${LR_WARMUP:-5}"                        # steps
KL="${KL:-0.01}"                                   # coefficient of the KL penalty
SAVE_FREQ="${SAVE_FREQ:-20}"                       # steps between checkpoints
KNOBS=(SEED SFT_STEPS STEPS PROMPTS ROLLOUTS LR LR_WARMUP KL SAVE_FREQ)

start_run "$@"

make_start

make_step_rm honest

MEASURE=("$PYTHON" -m recipes.pspo_wrs.measure --step-rm "$OUT/step_rm_honest/model" --data "$OUT/data/test.parquet")
skip measure_before "$OUT/before.json" || phase measure_before "${MEASURE[@]}" --model "$OUT/sft" \
  --output "$OUT/before.json"

make_policy honest "$@"

skip measure_after "$OUT/after.json" || phase measure_after "${MEASURE[@]}" --model "$OUT/policy" \
  --output "$OUT/after.json"

# Page and report are cheap, so they are always made.
"$PYTHON" -m prime_ext.transcripts "$OUT"
"$PYTHON" -m recipes.pspo_wrs.pspo_report --run-dir "$OUT"
