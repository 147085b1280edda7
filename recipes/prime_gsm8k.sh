#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PRIME on GSM8K with any Hugging Face chat model.
# Settings and knobs: prime_gsm8k.yaml.
set -euo pipefail

# shellcheck source=recipes/experiment.sh
source "$(dirname "${BASH_SOURCE[0]}")/experiment.sh"
run_experiment prime_gsm8k.yaml "$@"
