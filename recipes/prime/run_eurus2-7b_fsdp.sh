#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME and its ablations (arXiv 2502.01456, section 4, appendix): math and code, 8 GPUs
# of 80 GB.
# Settings and knobs: prime/eurus2-7b.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/eurus2-7b.yaml "$@"
