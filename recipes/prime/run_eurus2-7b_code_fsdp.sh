#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME on code only: Eurus-2-7B-SFT, programs judged by their tests in the sandbox of prime_ext, 8
# GPUs of 80 GB.
#
#   python -m recipes.prime.code_rows data/eurus2_rl data/eurus2_code
#   bash recipes/prime/run_eurus2-7b_code_fsdp.sh [verl overrides ...]
#   DRY_RUN=1 bash recipes/prime/run_eurus2-7b_code_fsdp.sh   # memory, time and disk space, without a GPU
#
# Settings, knobs and variants are those of run_eurus2-7b_fsdp.sh. The reward is the share of the
# tests that pass, as in the released code. With CODE_REWARD=all, which the variant dpo needs, all
# tests must pass. Every node judges SANDBOX_WORKERS programs at a time, each test within
# TEST_SECONDS and TEST_MEMORY_MB. python -m prime_ext.doctor checks whether the sandbox works on a
# node; without it, code is refused.
# Other data: data_preprocessing/settings/code.yaml (docs/reference/data.md), with TRAIN_FILES and
# VAL_FILES.
#
# NEVER RUN ON A GPU: composed and checked by a test on the CPU; the sandbox is tested on CPUs
# (docs/reference/verifiers.md).
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin_variation prime/run_eurus2-7b_fsdp.sh "$@"

export TRAIN_FILES=${TRAIN_FILES:-data/eurus2_code/train.parquet} VAL_FILES=${VAL_FILES:-data/eurus2_code/validation.parquet}
export OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_code_${VARIANT:-prime}}
code="seconds: ${TEST_SECONDS:-10}, memory_mb: ${TEST_MEMORY_MB:-1024}"
[[ -z "${SANDBOX_WORKERS:-}" ]] || code+=", workers: $SANDBOX_WORKERS"
exec bash "$RUN" \
    +reward.custom_reward_function.reward_kwargs.code_reward="${CODE_REWARD:-fraction}" \
    "+reward.custom_reward_function.reward_kwargs.verifiers={code: {$code}}" \
    trainer.experiment_name=eurus2_7b_code \
    "$@"
