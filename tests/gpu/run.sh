#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What prime_ext does on one CUDA device, in parts of at most ten minutes; writes
# tests/gpu/results/DEVICE*.json. Run tests/gpu/first_run.sh first.
#
#   bash tests/gpu/run.sh                   every part whose packages are there
#   bash tests/gpu/run.sh measure pytest    these
#   bash tests/gpu/run.sh --dry-run         print them
#   DEVICE=cpu bash tests/gpu/run.sh        the same programs with tiny sizes on the CPU
#
# measure  the PRM's engines and token budgets next to the plan's figures; needs neither ray nor
#          vllm (python tests/gpu/measure.py --help)
# pytest   the tests marked gpu
# gsm8k    recipes/prime_gsm8k.sh, killed and started again; with vLLM if it is installed. MODEL
#          and GSM8K_DIR name a model and the folder of the official data; without them: a tiny
#          untrained model
#
# Knobs (environment): DEVICE RESULTS (folder) LIMIT (seconds for each part, default 600) MODEL GSM8K_DIR PYTHON
set -euo pipefail

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case "${1:-}" in
    -h | --help) sed -n '/^# What prime_ext/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-; exit 0 ;;
esac
cd "$PROJECT_ROOT"
# shellcheck source=recipes/python.sh
source recipes/python.sh
exec "$PYTHON" tests/gpu/device_run.py run "$@"
