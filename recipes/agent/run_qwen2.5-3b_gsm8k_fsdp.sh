#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An agent with Python as its tool on GSM8K: Qwen2.5-3B-Instruct, on 8 GPUs of 80 GB or one.
# Settings and knobs: agent/qwen2.5-3b_gsm8k.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment agent/qwen2.5-3b_gsm8k.yaml "$@"
