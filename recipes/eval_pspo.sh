#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Evaluate a model on the six numeric sets of PSPO (arXiv 2411.11681), with the prompts of its
# released code.
#
#   bash recipes/eval_pspo.sh MODEL [options of eval.run ...]
#   DATA=FOLDER bash recipes/eval_pspo.sh outputs/pspo_wrs/ppo_weibull/hf
#   DECODING=recommended BACKEND=vllm bash recipes/eval_pspo.sh MODEL
#
# MODEL is a hub id, a Hugging Face folder or a verl checkpoint. The released code samples with 5
# beams; here one response is sampled. DECODING=recommended samples 16 responses at temperature 0.3
# and top-p 0.95, as the authors of PRIME advise.
# The scores of the published table are micro-F1, which is the accuracy here.
# The test rows of the paper are not public: EQUATE and Quantitative-101 are evaluated instead, and
# published numbers stand next to ours for orientation only (docs/reference/numeric_reasoning.md).
# After an interruption, the same command continues.
#
# NEVER RUN ON A GPU. Options after MODEL go to eval.run unchanged, e.g. --limit 20 to try it out.
set -euo pipefail

# shellcheck source=recipes/eval_suite.sh
source "$(dirname "${BASH_SOURCE[0]}")/eval_suite.sh"
begin 1 "$SUITE_KNOBS" "$@"
MODEL=$1
shift

TASKS=${TASKS:-awpnli,newsnli,redditnli,rte_quant,stresstest,qqa}
# transformers, vllm or server.
BACKEND=${BACKEND:-transformers}
# default (the task's own), none, actions (PRIME's) or a text file.
SYSTEM_PROMPT=${SYSTEM_PROMPT:-default}

evaluate_suite pspo pspo "$MODEL" "$@"
