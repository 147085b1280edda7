#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first quarter of an hour on a CUDA device: from the doctor to two steps of PRIME and PRIME-D
# with a model of 0.5B. Needs no network. Stops at the first failure, and copies the logs.
#
#   bash tests/gpu/first_run.sh                  all steps
#   bash tests/gpu/first_run.sh --dry-run        print the steps, their limits and what they lack here
#   bash tests/gpu/first_run.sh --from shrunk    continue from a step
#   bash tests/gpu/first_run.sh triton compile   only these
#   DEVICE=cpu bash tests/gpu/first_run.sh       what a CPU can do of it, with tiny sizes
#
# doctor      prime_ext.doctor; problems that it finds are warnings here
# toolchain   a C compiler and Python.h, without which no Triton kernel runs; nvcc
# triton, compile, flash_attn   one kernel of each, compared with torch
# inputs      untrained models (tiny Qwen2 and Qwen3, 0.5B) and generated rows
# evaluate    eval.run with vLLM and the tiny Qwen2
# shrunk      recipes/prime/run_eurus2-7b_fsdp.sh with SHRINK=gpu, vLLM and the tiny Qwen3
# resume      the same continued to four steps, with TORCH_COMPILE_DISABLE=0
# gsm8k       recipes/prime_gsm8k.sh, two steps with 0.5B
# distilled   the same with variant=distilled
# logs        copies of the runs' logs and of Ray's
#
# A step whose packages are missing is skipped. RESULTS/DEVICE_first_run.json, written after every
# step, has commands, seconds, results and versions; RESULTS/STEP.log the output.
#
# Knobs (environment): DEVICE (cuda or cpu) RESULTS (folder, default outputs/first_run) WORK (folder of
# models and runs, the same) LIMIT (seconds for each step, instead of its own) PYTHON
set -euo pipefail

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case "${1:-}" in
    -h | --help) sed -n '/^# The first/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-; exit 0 ;;
esac
cd "$PROJECT_ROOT"
# Without verl the first steps run all the same.
[[ -n "${PYTHON:-}" ]] || (source recipes/python.sh) 2> /dev/null || PYTHON=python3
# shellcheck source=recipes/python.sh
source recipes/python.sh
exec "$PYTHON" tests/gpu/device_run.py first_run "$@"
