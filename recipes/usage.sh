#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What -h prints. Sourced; needs nothing.

# usage SCRIPT: the comment at the head of a recipe, behind its first two lines (interpreter, licence).
usage() {
    sed -n '3,/^[^#]/p' "$1" | grep '^#' | cut -c3-
}

# answer_help SCRIPT BASE [ARGUMENT]: if ARGUMENT asks for help, print what SCRIPT says and the knobs of BASE, the script that
# it runs, and those in OWN_KNOBS, and exit.
answer_help() {
    [[ "${3:-}" == "-h" || "${3:-}" == "--help" ]] || return 0
    usage "$1"
    bash "$2" --help | sed -n '/^Knobs/,$p'
    [[ -z "${OWN_KNOBS:-}" ]] || echo "                     $OWN_KNOBS"
    exit 0
}
