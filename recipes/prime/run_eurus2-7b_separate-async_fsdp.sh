#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eurus-2-7B-PRIME with rollout servers on separate GPUs, which keep generating while policy and PRM
# train (verl's separate_async trainer, docs/explanation/async.md): 4 + 4 GPUs of 80 GB.
# Settings and knobs: prime/eurus2-7b_separate-async.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/eurus2-7b_separate-async.yaml "$@"
