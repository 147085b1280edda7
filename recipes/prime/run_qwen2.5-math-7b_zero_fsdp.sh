#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME from a base model without SFT ("Zero", arXiv 2502.01456): Qwen2.5-Math-7B, or with SIZE=32b
# Qwen2.5-32B on 4 nodes.
# Settings and knobs: prime/qwen2.5-math-7b_zero.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/qwen2.5-math-7b_zero.yaml "$@"
