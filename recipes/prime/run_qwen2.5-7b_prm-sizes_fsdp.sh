#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRMs of other sizes than the policy (arXiv 2502.01456, appendix): Qwen2.5-7B with a PRM of 3B, 7B
# or 14B.
#
#   PRM_SIZE=14B bash recipes/prime/run_qwen2.5-7b_prm-sizes_fsdp.sh [verl overrides ...]
#
# Settings and knobs are those of run_eurus2-7b_fsdp.sh. Published averages over AIME 2024 and 2025,
# AMC, MATH, Minerva and OlympiadBench: 32.0 (3B), 32.6 (7B), 31.8 (14B).
#
# NEVER RUN ON A GPU: composed, checked and compared with the paper's settings by a test on the CPU.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin_variation prime/run_eurus2-7b_fsdp.sh "$@"

PRM_SIZE=${PRM_SIZE:-7B}
export MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-7B} PRM_PATH=${PRM_PATH:-Qwen/Qwen2.5-$PRM_SIZE}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/prm_size_$PRM_SIZE}
exec bash "$RUN" "trainer.experiment_name=prm_size_$PRM_SIZE" "$@"
