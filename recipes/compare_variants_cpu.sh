#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME against RLOO with the outcome verifier only: same start, same data, same number of rollouts trained on. PRIME has
# the form of the paper, without a reliability gate.
#
#   bash recipes/compare_prime_rloo_cpu.sh [verl overrides for both ...]
#
# Writes OUT/{comparison.json,comparison.png,comparison.md}. A run whose result is complete is skipped and an interrupted
# one is resumed: start the same command again. About 25 minutes on 2 cores with the defaults.
# Knobs (environment): OUT SEEDS STEPS EVERY TEST_SIZE, and those of recipes/quickstart/train.sh
set -euo pipefail

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=recipes/usage.sh
source "$PROJECT_ROOT/recipes/usage.sh"
case "${1:-}" in
    -h | --help) usage "${BASH_SOURCE[0]}"; exit 0 ;;
esac
cd "$PROJECT_ROOT"
OUT=${OUT:-$PROJECT_ROOT/outputs/compare_prime_rloo}
SEEDS=${SEEDS:-"0 1 2"}
export STEPS=${STEPS:-60}
EVERY=${EVERY:-10}
TEST_SIZE=${TEST_SIZE:-2000}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)

[[ -n "${PYTHON:-}" ]] || bash recipes/make_environment.sh
PYTHON=${PYTHON:-$PROJECT_ROOT/.venv/bin/python}
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
export PYTHON OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

settings=$(printf '%s\n' "steps=$STEPS" "evaluated_every=$EVERY" "test_size=$TEST_SIZE" "prompts=${PROMPTS:-16}" \
    "rollouts=${ROLLOUTS:-4}" "policy_lr=${LR:-2e-4}" "lr_warmup=${LR_WARMUP:-10}" "prm_lr=${PRM_LR:-1e-3}" \
    "prm_mini_batch=${PRM_MINI_BATCH:-4}" "beta=${BETA:-0.2}" "overrides=$*")
# shellcheck source=recipes/quickstart/settings.sh
source "$PROJECT_ROOT/recipes/quickstart/settings.sh"
keep_settings runs "$settings"

[[ -e "$OUT/data/data.json" ]] \
    || "$PYTHON" -m recipes.quickstart.data --output-dir "$OUT/data" --test-size "$TEST_SIZE"
[[ -e "$OUT/sft/sft.json" ]] \
    || "$PYTHON" -m recipes.quickstart.sft --data "$OUT/data/sft.parquet" --output-dir "$OUT/sft"

# train_one METHOD SEED: one run into its own folder; its output goes to log.txt there.
train_one() {
    local run=$OUT/runs/${1}_seed$2 form=(variant=paper)
    mkdir -p "$run"
    [[ -e "$run/checkpoints/global_step_$STEPS/prime_ext_complete.json" ]] && return
    [[ $1 == rloo ]] && form=(prime.process.coefficient=0 prm.enable=false)
    SEED=$2 SAVE_FREQ=$EVERY KEEP=null bash recipes/quickstart/train.sh "$run" "$OUT/data" "$OUT/sft" \
        "${form[@]}" "${@:3}" >> "$run/log.txt" 2>&1 || { tail -n 30 "$run/log.txt" >&2; return 1; }
}

for seed in $SEEDS; do
    echo "== seed $seed: PRIME and RLOO side by side, so that their seconds are comparable ($(date +%H:%M))"
    train_one prime "$seed" "$@" &
    prime=$!
    train_one rloo "$seed" "$@" &
    rloo=$!
    wait "$prime"
    wait "$rloo"
    for method in prime rloo; do
        "$PYTHON" -m recipes.compare_prime_rloo.compare evaluate --run "$OUT/runs/${method}_seed$seed" \
            --start "$OUT/sft" --data "$OUT/data/test.parquet"
    done
done
cp "$OUT/settings.txt" "$OUT/runs/settings.txt"
"$PYTHON" -m recipes.compare_prime_rloo.compare summarize --runs "$OUT/runs" --output-dir "$OUT"
