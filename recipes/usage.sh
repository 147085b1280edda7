#!/usr/bin/env bash
# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# What -h prints. Sourced; needs nothing.

# usage SCRIPT: the comment at the head of a recipe, less its licence, which ends with line 14 in all of them.
usage() {
    sed -n '15,/^[^#]/p' "$1" | grep '^#' | cut -c3-
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
