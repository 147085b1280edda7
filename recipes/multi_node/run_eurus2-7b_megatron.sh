#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME with the policy on Megatron (tensor parallel) and the PRM on FSDP2, on the same
# GPUs: 8 of 80 GB.
# Settings and knobs: multi_node/eurus2-7b_megatron.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment multi_node/eurus2-7b_megatron.yaml "$@"
