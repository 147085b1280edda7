# SPDX-License-Identifier: Apache-2.0
# Shared code of the quickstarts: help, the folder of a run with its settings, and phases that are
# timed and skipped when done. Sourced; sets ROOT. It needs OUT and the array KNOBS, which must
# follow the knobs at the head of a quickstart.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

# keep_settings WHAT SETTINGS: write OUT/settings.txt; refuse a folder that holds WHAT ("a run")
# with other settings.
keep_settings() {
  if [[ ! -f "$OUT/settings.txt" ]]; then
    printf '%s\n' "$2" > "$OUT/settings.txt.new"
    mv "$OUT/settings.txt.new" "$OUT/settings.txt"
  elif [[ "$(cat "$OUT/settings.txt")" != "$2" ]]; then
    echo "$OUT holds $1 with other settings (settings.txt); choose another OUT or delete that folder:" >&2
    diff "$OUT/settings.txt" - <<< "$2" >&2 || exit 2
  fi
}

# start_run OVERRIDES...: print help if the first is -h or --help; else make the folder, go to the
# root, and make the environment if PYTHON does not name an interpreter; refuse a folder that holds
# a run with other settings.
start_run() {
  if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    sed -n '3,/^KNOBS/p' "${BASH_SOURCE[1]}" | sed '$d; /^set -/d; /^source /d; /^# shellcheck/d; s/^# \{0,1\}//'
    exit 0
  fi
  mkdir -p "$OUT"
  OUT="$(cd "$OUT" && pwd)"
  cd "$ROOT"
  local settings
  settings="$(for knob in "${KNOBS[@]}"; do printf '%s=%s\n' "$knob" "${!knob}"; done; printf 'OVERRIDES=%s\n' "$*")"
  keep_settings "a run" "$settings"
  [[ -n "${PYTHON:-}" ]] || phase environment bash recipes/make_environment.sh
  PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
  export PYTHON OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 VERL_PLATFORM=cpu
}

# phase NAME COMMAND...: run the command and record its seconds, even if it is interrupted.
running=""
note_seconds() {
  if [[ -n "$running" ]]; then
    printf '%s\t%s\n' "$running" "$((SECONDS - phase_start))" >> "$OUT/seconds.tsv"
    running=""
  fi
}
trap note_seconds EXIT
trap 'exit 130' INT TERM
phase() {
  running="$1"
  phase_start=$SECONDS
  shift
  printf '\n== %s\n' "$running"
  "$@"
  printf '== %s: %s s\n' "$running" "$((SECONDS - phase_start))"
  note_seconds
}
# skip NAME FILE: if the result of the phase is there, print a line and return true.
skip() {
  [[ -e "$2" ]] && printf '\n== %s: done before (%s)\n' "$1" "${2#"$OUT"/}"
}

# make_data RECIPE: write OUT/data; a quickstart may have a function of its own.
make_data() {
  local recipe=$1
  "$PYTHON" -m "recipes.$recipe.${recipe}_data" --output-dir "$OUT/data" --seed "$SEED" --test-size "$TEST_SIZE" \
    --mean-error "$MEAN_ERROR"
}

# data_to_report RECIPE EVALUATION OVERRIDES...: run all phases from the data to the report with the
# knobs and the modules of recipes/RECIPE, of which EVALUATION measures a policy.
data_to_report() {
  local recipe=$1 evaluation=$2
  shift 2

  skip data "$OUT/data/data.json" || phase data make_data "$recipe"

  skip warm_start "$OUT/sft/sft.json" || phase warm_start "$PYTHON" -m "recipes.$recipe.${recipe}_sft" \
    --data "$OUT/data/sft.parquet" --output-dir "$OUT/sft" --steps "$SFT_STEPS" --seed "$SEED"

  skip evaluation_before "$OUT/evaluation_before.json" || phase evaluation_before "$PYTHON" -m "recipes.$recipe.$evaluation" \
    --model "$OUT/sft" --data "$OUT/data/test.parquet" --output "$OUT/evaluation_before.json" --seed "$SEED"

  export SEED STEPS PROMPTS ROLLOUTS LR LR_WARMUP PRM_LR PRM_MINI_BATCH BETA SAVE_FREQ TEST_FREQ
  skip prime "$OUT/checkpoints/global_step_$STEPS/prime_ext_complete.json" \
    || phase prime bash "recipes/$recipe/train.sh" "$OUT" "$OUT/data" "$OUT/sft" "$@"

  skip export_policy "$OUT/policy/config.json" || phase export_policy "$PYTHON" -m prime_ext.generate.export \
    "$OUT/checkpoints" "$OUT/policy"
  skip export_prm "$OUT/prm/config.json" || phase export_prm "$PYTHON" -m prime_ext.generate.export \
    "$OUT/checkpoints" "$OUT/prm" --role prm

  skip evaluation_after "$OUT/evaluation_after.json" || phase evaluation_after "$PYTHON" -m "recipes.$recipe.$evaluation" \
    --model "$OUT/policy" --data "$OUT/data/test.parquet" --output "$OUT/evaluation_after.json" --seed "$SEED"

  # Page and report are cheap, so they are always made.
  "$PYTHON" -m prime_ext.transcripts "$OUT"
  "$PYTHON" -m "recipes.$recipe.${recipe}_report" --run-dir "$OUT"
}
