#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME with long responses (arXiv 2502.01456, the DeepScaleR setting):
# DeepSeek-R1-Distill-Qwen-1.5B, 8,192 tokens.
#
#   bash recipes/prime/run_deepseek-r1-distill-1.5b_fsdp.sh [verl overrides ...]
#
# Settings, knobs and variants are those of run_eurus2-7b_fsdp.sh, except for the length and the 330
# steps. The paper gives these and 446.7 A800 hours, but no other settings. TRAIN_FILES: the
# DeepScaleR problems (docs/reference/data.md: settings/math.yaml --input own=FILE).
#
# NEVER RUN ON A GPU: composed, checked and compared with the paper's settings by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin_variation prime/run_eurus2-7b_fsdp.sh "$@"

export MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
export MAX_RESPONSE=${MAX_RESPONSE:-8192} STEPS=${STEPS:-330}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/r1_distill_1.5b_${VARIANT:-prime}}
exec bash "$RUN" "trainer.experiment_name=r1_distill_1.5b" "$@"
