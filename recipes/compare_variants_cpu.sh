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
METHODS=${METHODS:-"rloo paper distilled"}
SEEDS=${SEEDS:-"0 1 2"}
export STEPS=${STEPS:-80}
EVERY=${EVERY:-20}
TEST_SIZE=${TEST_SIZE:-2000}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)

# The learning rates that the laboratory found on this task; the PRM's of the paper's form are those of earlier versions.
declare -A KNOBS=(
    [rloo]="LR=4e-4"
    [paper]="LR=2e-4 PRM_LR=1e-3 BETA=0.2"
    [distilled]="LR=4e-4 PRM_LR=2e-3 BETA=1.0"
)
declare -A OVERRIDES=(
    [rloo]="variant=paper prime.process.coefficient=0 prm.enable=false"
    [paper]="variant=paper"
    [distilled]="variant=distilled"
)
for method in $METHODS; do
    if [[ -z "${KNOBS[$method]:-}" ]]; then
        echo "compare_variants_cpu.sh: METHODS=$METHODS; $method must be one of ${!KNOBS[*]}" >&2
        exit 2
    fi
done
settings=$(printf '%s\n' "steps=$STEPS" "evaluated_every=$EVERY" "test_size=$TEST_SIZE" "prompts=${PROMPTS:-16}" \
    "rollouts=${ROLLOUTS:-4}" "rloo: ${KNOBS[rloo]}" "paper: ${KNOBS[paper]}" "distilled: ${KNOBS[distilled]}" "overrides=$*")
# shellcheck source=recipes/quickstart/settings.sh
source "$PROJECT_ROOT/recipes/quickstart/settings.sh"
keep_settings runs "$settings"

[[ -e "$OUT/data/data.json" ]] \
    || "$PYTHON" -m recipes.quickstart.data --output-dir "$OUT/data" --test-size "$TEST_SIZE"
[[ -e "$OUT/sft/sft.json" ]] \
    || "$PYTHON" -m recipes.quickstart.sft --data "$OUT/data/sft.parquet" --output-dir "$OUT/sft"

# train_one METHOD SEED: one run into its own folder; its output goes to log.txt there.
train_one() {
    local run=$OUT/runs/${1}_seed$2 knobs form
    mkdir -p "$run"
    [[ -e "$run/checkpoints/global_step_$STEPS/prime_ext_complete.json" ]] && return
    read -ra knobs <<< "${KNOBS[$1]}"
    read -ra form <<< "${OVERRIDES[$1]}"
    env "${knobs[@]}" SEED="$2" SAVE_FREQ="$EVERY" KEEP=null bash recipes/quickstart/train.sh "$run" "$OUT/data" \
        "$OUT/sft" "${form[@]}" "${@:3}" >> "$run/log.txt" 2>&1 || { tail -n 30 "$run/log.txt" >&2; return 1; }
}

for seed in $SEEDS; do
    for method in $METHODS; do
        echo "== seed $seed: $method ($(date +%H:%M))"
        train_one "$method" "$seed" "$@"
        "$PYTHON" -m recipes.compare_variants.compare evaluate --run "$OUT/runs/${method}_seed$seed" \
            --start "$OUT/sft" --data "$OUT/data/test.parquet"
    done
done
cp "$OUT/settings.txt" "$OUT/runs/settings.txt"
"$PYTHON" -m recipes.compare_variants.compare summarize --runs "$OUT/runs" --output-dir "$OUT"
