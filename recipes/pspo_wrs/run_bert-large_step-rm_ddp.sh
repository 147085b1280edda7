#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PSPO-WRS on GPUs, 1 of 3: the step reward model, with the settings of the released code (arXiv
# 2411.11681).
#
#   bash recipes/pspo_wrs/run_bert-large_step-rm_ddp.sh MODEL STEPS [overrides of prime_ext/config/step_rm.yaml ...]
#   bash recipes/pspo_wrs/run_bert-large_step-rm_ddp.sh google-bert/bert-large-uncased train_steps.jsonl
#   FORMAT=prm800k bash recipes/pspo_wrs/run_bert-large_step-rm_ddp.sh google-bert/bert-large-uncased phase2_train.jsonl
#
# STEPS is a parquet file of python -m prime_ext.step_rm.convert, or a file in the format FORMAT,
# which is converted.
# bert-large-uncased, three classes, 10 epochs at 2e-5 with 5 % warm-up, 2,048 steps per update, 256
# tokens, and the separator as text. Differences from the original: a test split that cannot leak,
# the checkpoint chosen on a validation split, a temperature fitted on it. After an interruption,
# the same command resumes from its last checkpoint.
# DRY_RUN=1 prints the command; SHRINK=1 makes two steps with a tiny untrained model on the CPU.
#
# NEVER RUN ON A GPU: its settings are checked by a test on the CPU, and the same training runs in
# recipes/pspo_quickstart_cpu.sh with a small encoder.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 2 "OUTPUT_DIR FORMAT (pspo prm800k math_shepherd chains) N_GPUS NNODES BATCH EFFECTIVE_BATCH LR EPOCHS
    MAX_LENGTH DEVICE DTYPE DRY_RUN SHRINK PYTHON TORCHRUN" "$@"
MODEL=$1
STEPS=$2
shift 2
OUTPUT_DIR=${OUTPUT_DIR:-outputs/pspo_wrs/step_rm}
FORMAT=${FORMAT:-pspo}
N_GPUS=${N_GPUS:-2}
# Steps per device and pass; the passes per update follow from it.
BATCH=${BATCH:-32}
EFFECTIVE_BATCH=${EFFECTIVE_BATCH:-2048}
# shellcheck source=recipes/sft_launch.sh
source "$PROJECT_ROOT/recipes/sft_launch.sh"

devices=$((N_GPUS * ${NNODES:-1}))
if ((EFFECTIVE_BATCH % (BATCH * devices))); then
    echo "EFFECTIVE_BATCH=$EFFECTIVE_BATCH is not a multiple of BATCH=$BATCH times N_GPUS=$N_GPUS times NNODES=${NNODES:-1}" >&2
    exit 2
fi
if shrink; then
    prepare_shrunk step_rm "$OUTPUT_DIR/inputs"
    STEPS=$OUTPUT_DIR/inputs/chains.jsonl FORMAT=chains
fi
if [[ "$STEPS" != *.parquet ]]; then
    DATA=$OUTPUT_DIR/steps.parquet
    dry_run || [[ -f "$DATA" ]] ||
        "$PYTHON" -m prime_ext.step_rm.convert "--${FORMAT//_/-}" "$STEPS" --output "$DATA"
    STEPS=$DATA
fi
launch_supervised prime_ext.step_rm.train \
    model.path="$MODEL" \
    data.files="$STEPS" \
    data.layout=text \
    data.previous=1 \
    data.max_length="${MAX_LENGTH:-256}" \
    optim.lr="${LR:-2e-5}" \
    optim.epochs="${EPOCHS:-10}" \
    optim.warmup_ratio=0.05 \
    optim.batch_size="$BATCH" \
    optim.accumulation="$((EFFECTIVE_BATCH / (BATCH * devices)))" \
    trainer.output_dir="$OUTPUT_DIR" \
    trainer.device="${DEVICE:-cuda}" \
    trainer.dtype="${DTYPE:-bfloat16}" \
    "$@"
