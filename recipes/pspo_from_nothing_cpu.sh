#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PSPO-WRS without any labeled step, on a machine without an accelerator (2 cores, 8 GB).
#
#   bash recipes/pspo_from_nothing_cpu.sh              everything into outputs/pspo_from_nothing
#   bash recipes/pspo_from_nothing_cpu.sh chain@prime.process=cn_ppo   further words are overrides of verl's configuration
#
# Questions with answers -> warm start -> responses -> labels of their steps, by continuing each
# prefix -> step reward model -> PSPO-WRS through verl -> export -> evaluation -> report. With data of
# your own, run the same programs: docs/tutorials/pspo_from_nothing.md. Phases and resumption are as
# in recipes/pspo_quickstart_cpu.sh, where the labels are known by construction.
set -euo pipefail

# shellcheck source=recipes/quickstart/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/quickstart/phases.sh"
# shellcheck source=recipes/pspo_wrs/phases.sh
source "$(dirname "${BASH_SOURCE[0]}")/pspo_wrs/phases.sh"
OUT="${OUT:-$ROOT/outputs/pspo_from_nothing}"      # folder of the run
SEED="${SEED:-0}"                                  # of data, warm start, responses, labels, step reward model, sampling
SFT_STEPS="${SFT_STEPS:-1200}"                      # warm start: optimizer steps
RESPONSES="${RESPONSES:-8000}"                     # problems with a response whose steps are labeled
SAMPLES="${SAMPLES:-4}"                            # continuations of each prefix of a response
SEARCH="${SEARCH:-bisection}"                      # which prefixes are continued: bisection or all
TEST_SIZE="${TEST_SIZE:-500}"                      # held-out problems
STEPS="${STEPS:-60}"                               # PSPO-WRS steps
PROMPTS="${PROMPTS:-16}"                           # problems per step
ROLLOUTS="${ROLLOUTS:-8}"                          # samples per problem
LR="${LR:-5e-4}"                                   # learning rate of the policy
LR_WARMUP="${LR_WARMUP:-5}"                        # steps
KL="${KL:-0.01}"                                   # coefficient of the KL penalty
SAVE_FREQ="${SAVE_FREQ:-20}"                       # steps between checkpoints
KNOBS=(SEED SFT_STEPS RESPONSES SAMPLES SEARCH TEST_SIZE STEPS PROMPTS ROLLOUTS LR LR_WARMUP KL SAVE_FREQ)

start_run "$@"

make_start

# respond NAME MODEL SPLIT LIMIT: a graded response to each of the first problems of a split.
respond() {
  skip "$1" "$OUT/$1/results.json" || phase "$1" "$PYTHON" -m eval.run --backend transformers --device cpu \
    --model "$OUT/$2" --tasks "$OUT/data/$3.parquet" --limit "$4" --temperature 1 --max-new-tokens 80 \
    --seed "$SEED" --output "$OUT/$1"
}
respond evaluation_before sft test "$TEST_SIZE"
respond responses sft train "$RESPONSES"

# The model has 128 positions: responses with prefixes of more than 70 tokens are left out.
skip labels "$OUT/labels/samples.parquet" || phase labels "$PYTHON" -m data_preprocessing.step_labels \
  --input "$OUT/responses/data_train/samples.jsonl" --output-dir "$OUT/labels" --pattern '(?<=;)\d' \
  --samples "$SAMPLES" --search "$SEARCH" --data-source prime_ext/last_digit_chain --backend transformers --device cpu \
  --model "$OUT/sft" --temperature 1 --top-p 1 --max-new-tokens 48 --sampling-seed "$SEED"

make_step_rm rollouts

make_policy rollouts "$@"

respond evaluation_after policy test "$TEST_SIZE"

# Comparison, page and report are cheap, so they are always made.
"$PYTHON" -m eval.compare "$OUT/evaluation_before" "$OUT/evaluation_after" --output "$OUT/comparison"
"$PYTHON" -m prime_ext.transcripts "$OUT"
"$PYTHON" -m recipes.pspo_wrs.rollout_report --run-dir "$OUT"
