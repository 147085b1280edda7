#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The reward-length study of PSPO-WRS on a small CPU task: which shape of the length factor can be hacked by filler?
#
#   bash recipes/pspo_length_study_cpu.sh
#
# 2 step reward models x 4 shapes x 3 seeds = 24 training runs through verl. Writes recipes/pspo_wrs/results/: a JSON file
# per run, a table, a plot and a verdict. Finished runs are skipped and an interrupted one is resumed: start the same
# command again.
# Knobs (environment): SEEDS (default "0 1 2"), LABELLERS ("honest lenient"), SHAPES ("none weibull gaussian released"),
#   OUT (working folder), PYTHON
set -euo pipefail

# shellcheck source=recipes/cpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/cpu.sh"
(($# == 0)) || { echo "pspo_length_study_cpu.sh takes no arguments, got: $1 (see --help)" >&2; exit 2; }
status=0
# Lists of words.
# shellcheck disable=SC2086
"$PYTHON" -m recipes.pspo_wrs.length_study --seeds ${SEEDS:-0 1 2} --labellers ${LABELLERS:-honest lenient} \
    --shapes ${SHAPES:-none weibull gaussian released} --work-dir "${OUT:-outputs/pspo_length_study}" || status=1
"$PYTHON" -m recipes.pspo_wrs.length_report
exit "$status"
