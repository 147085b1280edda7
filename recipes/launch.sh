#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared code of the training recipes without rollouts: a run shrunk for the CPU, and what has no
# plan. Sourced with PROJECT_ROOT and OUTPUT_DIR set.

# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"

# not_planned COMMAND...: print the command of a run without rollouts instead of its plan, which
# only RL runs have.
not_planned() {
    echo "memory is planned for RL runs only; this run is:"
    printf '%q ' "$@"
    echo
    exit 0
}

# refuse_idle_nodes: exit with an error if torchrun would start a run for several nodes on this one
# only. TORCHRUN tells it which of them this is.
refuse_idle_nodes() {
    [[ -z "${TORCHRUN:-}" && "${NNODES:-1}" != 1 ]] || return 0
    echo "${0##*/}: NNODES=$NNODES, and torchrun starts processes on this machine only; run it on every node, with" \
        "TORCHRUN='--nnodes=$NNODES --node-rank=RANK --master-addr=ADDRESS' (docs/how_to/multi_node.md)" >&2
    exit 2
}

# Overrides of a shrunk run, which come after those of the recipe.
SHRUNK=()

# prepare_shrunk ARGUMENTS...: let recipes/smoke write the inputs of a shrunk run, set SHRUNK to its
# overrides, and set the environment of a run on the CPU.
prepare_shrunk() {
    local words
    words=$("$PYTHON" -m recipes.smoke.prepare "$@")
    mapfile -t SHRUNK <<< "$words"
    # In addition to the modules of the command.
    export VERL_USE_EXTERNAL_MODULES=recipes.smoke.smoke_verifier${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES}
    [[ "$SHRINK" == gpu ]] || export VERL_PLATFORM=cpu
    export TORCH_COMPILE_DISABLE=${TORCH_COMPILE_DISABLE:-1} OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
}

# True if this is not a real run, so that the data and models of the recipe are not needed.
dry_run() { [[ "${DRY_RUN:-0}" != 0 ]]; }
shrink() { [[ "${SHRINK:-0}" != 0 ]]; }
rehearsal() { dry_run || shrink; }
