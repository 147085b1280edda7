#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRMs of other sizes than the policy (arXiv 2502.01456, appendix): Qwen2.5-7B with a PRM of 3B, 7B
# or 14B.
# Settings and knobs: prime/qwen2.5-7b_prm-sizes.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/qwen2.5-7b_prm-sizes.yaml "$@"
