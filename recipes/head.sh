#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The start of recipes: their help, and the root of the repository. Sourced; sets PROJECT_ROOT.

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# usage SCRIPT: print the comment at the head of a recipe, without its first two lines (interpreter,
# license).
usage() {
    sed -n '3,/^[^#]/p' "$1" | grep '^#' | cut -c3-
}

# begin LEAST KNOBS ARGUMENTS...: print usage and KNOBS and exit if the first argument is -h or
# --help, or if LEAST arguments are needed and there are none; with too few, exit with an error.
begin() {
    local script=${BASH_SOURCE[1]} least=$1 knobs=$2
    shift 2
    if [[ "${1:-}" == "-h" || "${1:-}" == "--help" || $# -eq 0 && $least -gt 0 ]]; then
        usage "$script"
        if [[ -n "$knobs" ]]; then
            echo "Knobs (environment): $(tr -s ' \n' ' ' <<< "$knobs" | fold -s -w 96 | sed '2,$s/^/                     /')"
        fi
        [[ $# -ge 1 ]] && exit 0 || exit 2
    fi
    if (($# < least)); then
        echo "${script##*/}: give $least arguments: $(usage "$script" | grep -m1 "${script##*/}" | sed 's/^ *//')" >&2
        exit 2
    fi
}
