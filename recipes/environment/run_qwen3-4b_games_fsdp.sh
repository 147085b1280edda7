#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An agent in two games of TextArena: Qwen3-4B, on 8 GPUs of 80 GB or one.
# Settings and knobs: environment/qwen3-4b_games.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment environment/qwen3-4b_games.yaml "$@"
