#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared code of the training recipes: the plan of a run instead of the run, a run shrunk for the
# CPU, and the run itself. Sourced with PROJECT_ROOT and OUTPUT_DIR set.

# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"

# launch CONFIG OVERRIDES...: replace this shell by the training run, on NNODES nodes if that is
# set.
# With DRY_RUN=1 the configuration is composed and checked instead, and its memory is printed; only
# the sizes of the models are read, and no GPU is needed. DEVICE_MEMORY is that of a device in GiB,
# 80 by default. Status: 0 if it fits, 1 if it would not start or not fit, 2 without a plan.
# With SHRINK=1 the same run makes two steps on the CPU, with an untrained tiny model of the recipe's
# family (Qwen2, Qwen3, Qwen3-MoE; a Llama for all others), generated rows and a verifier that
# counts digits: filter, PRM or step reward model, checkpoints and validation all run, but nothing
# is learned. With RAY_ADDRESS it runs on the NNODES nodes of that cluster, one rank on each. SHRINK_STEPS=4 makes four steps, or continues from two existing ones.
# SHRINK=gpu makes them on one GPU, with the configuration for GPUs; SHRINK_ROLLOUT=vllm generates
# with vLLM. Nothing is compiled by torch or vLLM, unless TORCH_COMPILE_DISABLE=0 is set.
launch() {
    local config=$1
    shift
    [[ -z "${NNODES:-}" ]] || set -- trainer.nnodes="$NNODES" "$@"
    ! dry_run || plan "$config" "$@"
    if shrink; then
        local tools=()
        [[ " $* " != *.default_agent_loop=bounded_tool_agent\ * ]] || tools=(--tools)
        prepare_shrunk "${config%%_*}" "$OUTPUT_DIR/inputs" "$@" ${RAY_ADDRESS:+--nodes "${NNODES:-1}"} \
            ${SHRINK_STEPS:+--steps "$SHRINK_STEPS"} ${SHRINK_ROLLOUT:+--rollout "$SHRINK_ROLLOUT"} "${tools[@]}"
        [[ "$config" == *_cpu || "$SHRINK" == gpu ]] || config=${config}_cpu
    fi
    set -x
    exec "$PYTHON" -m prime_ext.train --config-name="$config" "$@" "${SHRUNK[@]}"
}

# template SECTION MODEL: set TEMPLATE to the override that gives a model the chat template in the
# file CHAT_TEMPLATE. Models without a template need it. The default for the Abel models, which are
# older than such templates, is in recipes/pspo_wrs.
template() {
    local default= quoted
    TEMPLATE=()
    ! shrink || return 0
    [[ "$2" != *Abel* ]] || default=$PROJECT_ROOT/recipes/pspo_wrs/question_answer.jinja
    CHAT_TEMPLATE=${CHAT_TEMPLATE-$default}
    [[ -n "$CHAT_TEMPLATE" ]] || return 0
    quoted=$(< "$CHAT_TEMPLATE")
    TEMPLATE=("$1.custom_chat_template='${quoted//\'/\\\'}'")
}

# plan CONFIG ARGUMENTS...: replace this shell by the plan of a run.
plan() {
    exec "$PYTHON" -m prime_ext.doctor --plan --config-name "$1" --device-memory "${DEVICE_MEMORY:-80}" \
        --model-configs "$PROJECT_ROOT/recipes/model_configs" "${@:2}"
}

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
