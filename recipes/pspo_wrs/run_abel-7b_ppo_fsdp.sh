#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PSPO-WRS on GPUs, 3 of 3: PPO on the rewards of the step reward model (arXiv 2411.11681).
# Settings and knobs: pspo_wrs/abel-7b_ppo.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment pspo_wrs/abel-7b_ppo.yaml "$@"
