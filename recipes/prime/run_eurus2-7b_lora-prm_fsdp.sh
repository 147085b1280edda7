#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME with a LoRA adapter as the PRM: no second and third model of 7B in memory.
# Settings and knobs: prime/eurus2-7b_lora-prm.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/eurus2-7b_lora-prm.yaml "$@"
