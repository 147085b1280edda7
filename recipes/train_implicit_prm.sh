#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Train an implicit PRM offline on labeled responses (ImplicitPRM, EurusPRM), on GPUs or on the CPU.
#
#   bash recipes/train_implicit_prm.sh MODEL DATA [overrides ...]
#   bash recipes/train_implicit_prm.sh meta-llama/Llama-3.1-8B-Instruct rollouts.parquet prm.loss=dpo
#   bash recipes/train_implicit_prm.sh outputs/stage1/hf steps.jsonl prm.loss=step_ce \
#       prm.reference_path=Qwen/Qwen2.5-Math-7B-Instruct                        # stage 2, from step labels
#
# DATA is a parquet or JSON Lines file. Its columns are prompt (a text or chat messages),
# completions and correctness (and dataset); or, for prm.loss=step_ce, prompt, completions (steps)
# and labels (one per step); or, for the other losses, response (chat messages that end with the
# response) and label, as in PRIME-RL/EurusPRM-Stage1-Data. The data are checked before a model is
# loaded.
# Overrides are keys of prime_ext/config/offline_prm_common.yaml. The result is OUTPUT_DIR/hf and
# OUTPUT_DIR/metrics.jsonl. After an interruption, the same command resumes from its last
# checkpoint.
# DRY_RUN=1 prints the command; SHRINK=1 makes two steps on the CPU with a tiny untrained model.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/head.sh"
begin 2 "OUTPUT_DIR, N_PROC (processes; default: one per GPU, 1 on the CPU), DEVICE=cpu, PYTHON, NNODES, TORCHRUN (options of
    torchrun; default --standalone; for several nodes see docs/how_to/multi_node.md)" "$@"
MODEL=$1
DATA=$2
shift 2
# shellcheck source=recipes/launch.sh
source "$PROJECT_ROOT/recipes/launch.sh"
refuse_idle_nodes
OUTPUT_DIR=${OUTPUT_DIR:-outputs/implicit_prm}
! shrink || OUTPUT_DIR=$OUTPUT_DIR/shrunk
TORCHRUN=${TORCHRUN:---standalone}
export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false
export TENSORBOARD_DIR="$OUTPUT_DIR/tensorboard"

ARGUMENTS=(model.path="$MODEL" data.train_files="$DATA" trainer.output_dir="$OUTPUT_DIR")
[[ -n "${DEVICE:-}" ]] && ARGUMENTS+=(trainer.device="$DEVICE")
ARGUMENTS+=("$@")

if shrink; then
    prepare_shrunk offline_prm "$OUTPUT_DIR/inputs" "${ARGUMENTS[@]}"
    ARGUMENTS+=("${SHRUNK[@]}")
    N_PROC=1
fi
if [[ -z "${N_PROC:-}" ]]; then
    N_PROC=$("$PYTHON" -c 'import torch; print(max(1, torch.cuda.device_count()))')
    [[ "${DEVICE:-}" == "cpu" ]] && N_PROC=1
fi

# TORCHRUN holds several words.
# shellcheck disable=SC2206
COMMAND=("$PYTHON" -m torch.distributed.run $TORCHRUN --nproc-per-node "$N_PROC" -m prime_ext.offline_prm "${ARGUMENTS[@]}")
! dry_run || not_planned "${COMMAND[@]}"
"$PYTHON" -m prime_ext.offline_prm --check "${ARGUMENTS[@]}"
exec "${COMMAND[@]}"
