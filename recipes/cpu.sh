#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The start of recipes on the CPU: help, the root of the repository as the working folder, an
# environment if none is given, and the interpreter. Sourced, with the arguments of the recipe.

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/head.sh"
case "${1:-}" in
    -h | --help) usage "${BASH_SOURCE[1]}"; exit 0 ;;
esac
cd "$PROJECT_ROOT"
[[ -n "${PYTHON:-}" ]] || bash recipes/make_environment.sh
PYTHON=${PYTHON:-$PROJECT_ROOT/.venv/bin/python}
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
