#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What prime_ext does on one CUDA device, in parts of at most ten minutes; writes
# tests/gpu/results/DEVICE*.json.
#
#   bash tests/gpu/run.sh                   every part whose packages are there
#   bash tests/gpu/run.sh measure pytest    these
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
cd "$PROJECT_ROOT"
case "${1:-}" in
    -h | --help) sed -n '/^# What prime_ext/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-; exit 0 ;;
esac
DEVICE=${DEVICE:-cuda}
RESULTS=${RESULTS:-tests/gpu/results}
LIMIT=${LIMIT:-600}
# shellcheck source=recipes/python.sh
source recipes/python.sh
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
export PYTHONPATH=$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}

tiny=()
if [[ "$DEVICE" == cpu ]]; then
    export VERL_PLATFORM=cpu OMP_NUM_THREADS=1
    tiny=(--tiny)
    name=cpu
else
    unset VERL_PLATFORM
    name=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name().replace(" ", "_"))') || {
        echo "run.sh: torch sees no CUDA device; DEVICE=cpu tries the programs on the CPU" >&2
        exit 2
    }
fi
has() { "$PYTHON" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

parts=("$@")
if [[ ${#parts[@]} -eq 0 ]]; then
    parts=(measure pytest)
    ! has ray || parts+=(gsm8k)
fi
failed=()
for part in "${parts[@]}"; do
    case "$part" in
        measure) command=("$PYTHON" tests/gpu/measure.py "${tiny[@]}" --output "$RESULTS/$name.json") ;;
        pytest) command=("$PYTHON" -m pytest -m gpu -q tests/gpu) ;;
        gsm8k) command=("$PYTHON" tests/gpu/runs.py --device "$DEVICE" --output "$RESULTS/${name}_gsm8k.json") ;;
        *) echo "run.sh: no part $part; the parts are measure, pytest, gsm8k" >&2; exit 2 ;;
    esac
    echo "== $part"
    start=$SECONDS
    status=0
    timeout --kill-after=30 "$LIMIT" "${command[@]}" || status=$?
    # pytest's status 5: without a GPU no test is left.
    [[ $status -eq 0 || ($status -eq 5 && "$part" == pytest && "$DEVICE" == cpu) ]] || failed+=("$part ($status)")
    echo "== $part: $((SECONDS - start)) s, status $status"
done
[[ ${#failed[@]} -eq 0 ]] || { echo "failed: ${failed[*]}"; exit 1; }
echo "all parts ended well: ${parts[*]}; results in $RESULTS"
