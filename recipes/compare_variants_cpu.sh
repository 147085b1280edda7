#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME-D, PRIME as published, and RLOO with the outcome verifier only, on the quickstart's task: same start, same data,
# same number of rollouts trained on, each with learning rates of its own
# (docs/explanation/results/prime_d.md: how they were found).
#
#   bash recipes/compare_variants_cpu.sh [verl overrides for all ...]
#
# Writes OUT/{comparison.json,comparison.png,comparison.md}. A run whose result is complete is skipped and an interrupted
# one is resumed: start the same command again. About an hour on 2 cores with the defaults.
# The quickstart's picture shows recipes/compare_variants/comparison.json behind its own run.
# Knobs (environment): OUT METHODS SEEDS STEPS EVERY TEST_SIZE PROMPTS ROLLOUTS
set -euo pipefail

# shellcheck source=recipes/cpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/cpu.sh"
OUT=${OUT:-$PROJECT_ROOT/outputs/compare_variants}
STEPS=${STEPS:-80} EVERY=${EVERY:-20} TEST_SIZE=${TEST_SIZE:-2000}
export PROMPTS=${PROMPTS:-16} ROLLOUTS=${ROLLOUTS:-4}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
# shellcheck source=recipes/quickstart/phases.sh
source "$PROJECT_ROOT/recipes/quickstart/phases.sh"
keep_settings runs "$(printf '%s\n' "steps=$STEPS" "evaluated_every=$EVERY" "test_size=$TEST_SIZE" "prompts=$PROMPTS" \
    "rollouts=$ROLLOUTS" "overrides=$*")"

status=0
# Lists of words.
# shellcheck disable=SC2086
"$PYTHON" -m recipes.ablations.run --suite methods --only ${METHODS:-rloo paper distilled} --seeds ${SEEDS:-0 1 2} \
    --steps "$STEPS" --every "$EVERY" --test-size "$TEST_SIZE" --work-dir "$OUT" --results "$OUT/results" "$@" || status=$?
((status < 2)) || exit "$status"
"$PYTHON" -m recipes.compare_variants.compare "$OUT"
exit "$status"
