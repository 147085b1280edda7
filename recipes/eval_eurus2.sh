#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Evaluate a model on the suite of the PRIME paper (arXiv 2502.01456, table 1), with the paper's
# prompts and decoding.
#
#   DATA=FOLDER bash recipes/eval_eurus2.sh MODEL [options of eval.run ...]
#   DATA=FOLDER DECODING=recommended bash recipes/eval_eurus2.sh PRIME-RL/Eurus-2-7B-PRIME
#   DATA=FOLDER SYSTEM_PROMPT=default TASKS=math500,amc bash recipes/eval_eurus2.sh Qwen/Qwen2.5-Math-7B-Instruct
#
# MODEL is a hub id, a Hugging Face folder or a verl checkpoint. The paper decodes greedily, except
# for LiveCodeBench (10 responses at temperature 0.2). Its authors now recommend 16 responses at
# temperature 0.3 and top-p 0.95 (DECODING=recommended), because a greedy score on the 30 problems
# of AIME 2024 has a standard error of 8 points.
# The Eurus-2 models were trained with a system prompt of seven actions (SYSTEM_PROMPT=actions);
# give other models their own.
# DATA holds the files that prime_ext/tasks/benchmarks/*.yaml name under source.local: Minerva,
# OlympiadBench and LeetCode are not on the hub. Before anything is generated, missing files are
# listed with the places where they are published. The released script also runs humaneval and mbpp
# (TASKS). After an interruption, the same command continues.
#
# NEVER RUN ON A GPU. Options after MODEL go to eval.run unchanged, e.g. --limit 20 to try it out.
set -euo pipefail

# shellcheck source=recipes/eval_suite.sh
source "$(dirname "${BASH_SOURCE[0]}")/eval_suite.sh"
begin 1 "$SUITE_KNOBS" "$@"
MODEL=$1
shift

TASKS=${TASKS:-aime2024,amc,math500,minerva_math,olympiadbench,leetcode,livecodebench_v2}
# vllm, transformers or server.
BACKEND=${BACKEND:-vllm}
# default (the task's own), none, actions (PRIME's) or a text file.
SYSTEM_PROMPT=${SYSTEM_PROMPT:-actions}

evaluate_suite eurus2 prime "$MODEL" "$@"
