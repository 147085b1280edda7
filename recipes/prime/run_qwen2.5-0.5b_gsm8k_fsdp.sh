#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME on GSM8K with Qwen2.5-0.5B-Instruct, on one GPU of 24, 80 or 141 GB.
# Settings and knobs: prime/qwen2.5-0.5b_gsm8k.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/qwen2.5-0.5b_gsm8k.yaml "$@"
