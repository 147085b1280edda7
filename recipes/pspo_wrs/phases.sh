# SPDX-License-Identifier: Apache-2.0
# Phases that the quickstarts of PSPO-WRS share. Sourced after recipes/quickstart/phases.sh; they
# differ in the labels of the step reward model and in the evaluation.

# make_start: write the data and the warm-started policy.
make_start() {
  skip data "$OUT/data/data.json" || phase data "$PYTHON" -m recipes.pspo_wrs.pspo_data --output-dir "$OUT/data" --seed "$SEED"

  skip warm_start "$OUT/sft/sft.json" || phase warm_start "$PYTHON" -m recipes.quickstart.quickstart_sft \
    --data "$OUT/data/sft.parquet" --output-dir "$OUT/sft" --steps "$SFT_STEPS" --seed "$SEED"
}

# make_step_rm LABELER: train the step reward model on the labels of one labeler.
make_step_rm() {
  skip step_rm "$OUT/step_rm_$1/results.json" || phase step_rm "$PYTHON" -m recipes.pspo_wrs.step_rm \
    --run-dir "$OUT" --labeler "$1" --seed "$SEED"
}

# make_policy LABELER OVERRIDES...: train with PSPO-WRS through verl, and export the policy. Every
# override is in recipes/pspo_wrs/train_cpu.sh.
make_policy() {
  local step_rm="$OUT/step_rm_$1/model"
  shift
  export SEED STEPS PROMPTS ROLLOUTS LR LR_WARMUP KL SAVE_FREQ
  skip pspo_wrs "$OUT/trained" || phase pspo_wrs train "$step_rm" "$@"

  skip export "$OUT/policy/config.json" || phase export "$PYTHON" -m prime_ext.generate.export \
    "$OUT/checkpoints" "$OUT/policy"
}
train() {
  local step_rm="$1"
  shift
  bash recipes/pspo_wrs/train_cpu.sh "$OUT" "$OUT/data" "$OUT/sft" "$step_rm" "$@"
  touch "$OUT/trained"
}
