#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME on code only: Eurus-2-7B-SFT, programs judged by their tests in the sandbox of prime_ext, 8
# GPUs of 80 GB.
# Settings and knobs: prime/eurus2-7b_code.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../experiment.sh"
run_experiment prime/eurus2-7b_code.yaml "$@"
