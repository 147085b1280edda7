#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME with long responses (arXiv 2502.01456, the DeepScaleR setting):
# DeepSeek-R1-Distill-Qwen-1.5B, 8,192 tokens.
# Settings and knobs: prime/deepseek-r1-distill-1.5b.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/deepseek-r1-distill-1.5b.yaml "$@"
