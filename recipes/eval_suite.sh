#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared code of the evaluation recipes. Sourced.

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/head.sh"

SUITE_KNOBS="TASKS DATA OUTPUT_DIR DECODING BACKEND TENSOR_PARALLEL DATA_PARALLEL SYSTEM_PROMPT PYTHON"

# evaluate_suite NAME TABLE MODEL OPTIONS...: run the tasks, print the paper's table and the paths
# of the results, and exit. NAME is the recipe's; TABLE is that of eval.report.
evaluate_suite() {
    local name=$1 table=$2 model=$3 options=() status=0
    shift 3
    # shellcheck source=recipes/python.sh
    source "$PROJECT_ROOT/recipes/python.sh"
    # paper or recommended.
    DECODING=${DECODING:-paper}
    if [[ "$DECODING" != paper && "$DECODING" != recommended ]]; then
        echo "eval_$name.sh: DECODING must be paper or recommended, got $DECODING" >&2
        exit 2
    fi
    OUTPUT_DIR=${OUTPUT_DIR:-outputs/eval/$name/$(basename "$model")-$DECODING}
    # Folder with the benchmarks' files; empty: from the hub.
    [[ -z "${DATA:-}" ]] || options+=(--data "$DATA")
    # Only vLLM: GPUs that share one copy of the model, and copies, by default as many as the GPUs
    # can hold.
    if [[ "$BACKEND" == vllm ]]; then
        local gpus tensor=${TENSOR_PARALLEL:-1}
        gpus=$({ nvidia-smi --list-gpus 2> /dev/null || true; } | wc -l)
        [[ -z "${CUDA_VISIBLE_DEVICES:-}" ]] || gpus=$(tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | wc -l)
        options+=(--tensor-parallel "$tensor" --data-parallel "${DATA_PARALLEL:-$((gpus >= tensor ? gpus / tensor : 1))}")
    fi

    export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"
    set -x
    "$PYTHON" -m eval.run \
        --model "$model" \
        --tasks "$TASKS" \
        --decoding "$DECODING" \
        --backend "$BACKEND" \
        --system-prompt "$SYSTEM_PROMPT" \
        --output "$OUTPUT_DIR" \
        "${options[@]}" \
        "$@" || status=$?
    { set +x; } 2>/dev/null
    # 1: some responses failed; the report has the others.
    ((status <= 1)) || exit "$status"

    # Options such as --show-prompt end without results.
    if [[ -f "$OUTPUT_DIR/results.json" ]]; then
        "$PYTHON" -m eval.report "$OUTPUT_DIR" --table "$table"
        echo "results: $OUTPUT_DIR/results.json"
        echo "report:  $OUTPUT_DIR/report.md"
        echo "table:   python -m eval.report $OUTPUT_DIR --table $table"
    fi
    exit "$status"
}
