#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On-policy distillation on GSM8K: Qwen2.5-0.5B-Instruct learns from Qwen2.5-Math-7B-Instruct, on 8
# GPUs of 80 GB or one.
# Settings and knobs: distill/qwen2.5-0.5b_gsm8k.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment distill/qwen2.5-0.5b_gsm8k.yaml "$@"
