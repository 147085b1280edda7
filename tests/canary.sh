#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks another version of verl, or of what it needs, without changing the environment.
#
#   bash tests/canary.sh                                looks up all names that prime_ext relies on in the newest verl
#   bash tests/canary.sh 0.9.0                          in this one
#   bash tests/canary.sh --stack transformers==5.12.1   runs tests with these packages, and else the environment's
#   bash tests/canary.sh --stack torch==2.13.0 transformers==5.12.1 -- tests/prm -x
#
# Arguments after -- are for pytest, in place of the selection below: nothing slow, nothing with Ray.
# Packages come without what they need in turn; one that needs something newer says so when imported.
# Ends with status 1 and a line per name that is gone or changed, or pytest's status and a line per test that
# failed (docs/how_to/upgrading_verl.md). PYTHON names the interpreter of an environment with prime_ext; default:
# .venv/bin/python.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-$root/.venv/bin/python}"
packages=("verl${1:+==$1}")
stack=
tests=(tests/algorithms tests/config tests/generate tests/plan tests/prm tests/trainer -m "not slow and not vllm and not gpu")
if [[ "${1:-}" == --stack ]]; then
    stack=1
    shift
    packages=()
    while (($#)) && [[ "$1" != -- ]]; do
        packages+=("$1")
        shift
    done
    if ((${#packages[@]} == 0)); then
        echo "tests/canary.sh: --stack needs packages, such as transformers==5.12.1" >&2
        exit 2
    fi
    (($# < 2)) || tests=("${@:2}")
fi
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"$python" -m pip install -q --no-deps --only-binary :all: --target "$folder" "${packages[@]}"
ls "$folder" | grep dist-info
export PYTHONPATH="$folder:$root" VERL_PLATFORM=cpu
if [[ -z "$stack" ]]; then
    "$python" "$root/tests/support/verl_names.py"
else
    cd "$root"
    export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
    "$python" -c 'from importlib.metadata import version
print("with", *(f"{name} {version(name)}" for name in ("torch", "transformers", "tensordict", "verl")))'
    "$python" -m pytest -q -rf --tb=short -p no:cacheprovider "${tests[@]}"
fi
