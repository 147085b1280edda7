#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ablations of PRIME on small CPU tasks: PRM, losses, orders of update, estimators, and what makes process rewards safe.
#
#   bash recipes/ablations_cpu.sh [SUITE ...]          choices and long_chains are there; default: both
#
# Writes recipes/ablations/results/: a line of runs.jsonl per run, and a table and a plot per suite. Finished runs are skipped and
# an interrupted one is resumed: start the same command again. A run takes 4 to 8 minutes on 2 cores.
# Knobs (environment): SEEDS (default "0 1 2"), OUT (working folder), PYTHON
set -euo pipefail

# shellcheck source=recipes/cpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/cpu.sh"
[[ $# -gt 0 ]] || set -- choices long_chains
status=0
for suite in "$@"; do
    # shellcheck disable=SC2086
    "$PYTHON" -m recipes.ablations.run --suite "$suite" --seeds ${SEEDS:-0 1 2} --work-dir "${OUT:-outputs/ablations}" \
        || status=1
done
"$PYTHON" -m recipes.ablations.report
exit "$status"
