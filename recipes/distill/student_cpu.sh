#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On-policy distillation on the CPU: the quickstart's warm start learns from the model that the
# quickstart trained.
#
#   bash recipes/quickstart_cpu.sh                                   the teacher, outputs/quickstart/policy
#   bash recipes/distill/student_cpu.sh [verl overrides ...]         the student, in about 5 minutes
#   bash recipes/distill/student_cpu.sh prime.outcome.coefficient=1  ... and the verifier's outcome on top
#
# Without the outcome, no gold answers are needed. Accuracies are measured on the quickstart's
# held-out problems. Started again, it resumes.
# Knobs (environment): TEACHER STUDENT DATA OUT SEED STEPS PROMPTS ROLLOUTS LR SAVE_FREQ KEEP PYTHON
set -euo pipefail

# shellcheck source=recipes/cpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cpu.sh"
TEACHER=${TEACHER:-outputs/quickstart/policy} STUDENT=${STUDENT:-outputs/quickstart/sft}
DATA=${DATA:-outputs/quickstart/data} OUT=${OUT:-outputs/distill}
export SEED=${SEED:-0} STEPS=${STEPS:-60} SAVE_FREQ=${SAVE_FREQ:-20} KEEP=${KEEP:-1}
for folder in "$TEACHER" "$STUDENT"; do
    [[ -e "$folder/config.json" ]] || { echo "student_cpu.sh: $folder has no model; run recipes/quickstart_cpu.sh first" >&2; exit 2; }
done
mkdir -p "$OUT"

[[ -e "$OUT/checkpoints/global_step_$STEPS/prime_ext_complete.json" ]] || bash recipes/quickstart/train.sh "$OUT" "$DATA" "$STUDENT" \
    variant=on_policy_distillation prm.model.path="$TEACHER" "$@"
[[ -e "$OUT/policy/config.json" ]] || "$PYTHON" -m prime_ext.generate.export "$OUT/checkpoints" "$OUT/policy"
evaluate() {
    [[ -e "$OUT/$1.json" ]] || "$PYTHON" -m recipes.quickstart.evaluate \
        --model "$2" --data "$DATA/test.parquet" --output "$OUT/$1.json" --seed "$SEED"
}
evaluate student_before "$STUDENT"
evaluate teacher "$TEACHER"
evaluate student_after "$OUT/policy"
"$PYTHON" - "$OUT" <<'PY'
import json, sys
from pathlib import Path
for name in ("student_before", "teacher", "student_after"):
    result = json.loads((Path(sys.argv[1]) / f"{name}.json").read_text())
    print(f"{name:15} {100 * result['temperature_1']['accuracy']:5.1f} % sampled  {100 * result['greedy']['accuracy']:5.1f} % greedy")
PY
