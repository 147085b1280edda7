# SPDX-License-Identifier: Apache-2.0
# The Python of a recipe. Sourced with PROJECT_ROOT set. If PYTHON is not set, it becomes the first
# that has verl: that of the active virtual environment, that of .venv in this repository, or
# python3.

if [[ -z "${PYTHON:-}" ]]; then
    for candidate in "${VIRTUAL_ENV:-${CONDA_PREFIX:-}}/bin/python" "$PROJECT_ROOT/.venv/bin/python" python3; do
        "$candidate" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("verl") is None)' 2> /dev/null || continue
        PYTHON=$candidate
        break
    done
fi
PYTHON=$(command -v "${PYTHON:-none}") || {
    echo "${0##*/}: no Python with verl here: run bash recipes/make_environment.sh (CPU), or activate the environment of" \
        "pip install -e '.[gpu]', or set PYTHON to an interpreter that exists" >&2
    exit 2
}
export PYTHON

# need MODULE REQUIREMENT: install a package that only this recipe needs, but only into an
# environment that make_environment.sh has made; otherwise print what is missing, and stop.
need() {
    local install=("$PYTHON" -m pip install "$2") venv=$PROJECT_ROOT/.venv
    "$PYTHON" -c "import $1" 2> /dev/null && return
    if [[ "$PYTHON" == "$venv/bin/python" && -f "$venv/prime_ext_environment" && ! -L "$venv" ]]; then
        "${install[@]}" --quiet
    else
        echo "${0##*/}: $PYTHON lacks $1: ${install[*]@Q}" >&2
        exit 2
    fi
}
