#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The start of recipes whose settings are an experiment, a YAML file. Sourced.

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# explain FILE: print the comment at the head of an experiment, without the license.
explain() {
    sed -n '2,/^[^#]/p' "$1" | grep '^#' | cut -c3-
}

# list_knobs FILE: print the names and defaults of the knobs of an experiment and of its bases.
list_knobs() {
    local base
    sed -n '/^knobs:/,/^[^ k]/p' "$1" | grep '^ ' || true
    base=$(sed -n 's/^base: *//p' "$1")
    [[ -z "$base" ]] || list_knobs "$(dirname "$1")/$base"
}

# run_experiment FILE ARGUMENTS...: replace this shell by an experiment, a path below recipes/. If
# the first argument is -h or --help, print its help, which needs no Python, and exit.
run_experiment() {
    local file=$PROJECT_ROOT/recipes/$1
    shift
    if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
        explain "$file"
        echo "Knobs (environment), with their defaults:"
        list_knobs "$file" | awk '!/^  [A-Z]/ || !seen[$1]++'
        echo "and DRY_RUN SHRINK SHRINK_STEPS SHRINK_ROLLOUT DEVICE_MEMORY NNODES PYTHON (recipes/launch.py)"
        exit 0
    fi
    # shellcheck source=recipes/python.sh
    source "$PROJECT_ROOT/recipes/python.sh"
    export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"
    exec "$PYTHON" -m recipes.launch "$file" "$@"
}
