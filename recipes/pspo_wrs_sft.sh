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
# PSPO-WRS on GPUs, 2 of 3: the policy that PPO starts from, with verl's own SFT trainer (arXiv 2411.11681).
#
#   bash recipes/pspo_wrs_sft.sh MODEL TRAIN_PARQUET [overrides of verl's sft_trainer_engine ...]
#   bash recipes/pspo_wrs_sft.sh GAIR/Abel-7B-002 sft.parquet
#
# TRAIN_PARQUET has a column messages with question and answer in steps ("\n [1] ...", "the answer is option 1. #### 1").
# One epoch at 3e-5 with 3 % warm-up, 64 conversations per update, 1,024 tokens, as the original. After an interruption
# the same command goes on from its last checkpoint. python -m verl.model_merger merge --backend fsdp makes a Hugging
# Face folder of a checkpoint; with hf_model among its contents, as here, there is one already.
#
# NEVER RUN ON A GPU: its settings are composed by a test on the CPU.
set -euo pipefail

if [[ $# -lt 1 || "$1" == "-h" || "$1" == "--help" ]]; then
    sed -n '/^# PSPO-WRS on GPUs/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-
    echo "Knobs (environment): OUTPUT_DIR VAL_FILES N_GPUS BATCH MICRO_BATCH LR EPOCHS MAX_LENGTH SAVE_FREQ PYTHON TORCHRUN"
    [[ $# -ge 1 ]] && exit 0 || exit 2
fi
if [[ $# -lt 2 ]]; then
    echo "pspo_wrs_sft.sh: give MODEL and TRAIN_PARQUET; -h explains" >&2
    exit 2
fi
MODEL=$1
TRAIN=$2
shift 2
PYTHON=${PYTHON:-$(command -v python3)}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/pspo_wrs/sft}
TORCHRUN=${TORCHRUN:---standalone}
export TOKENIZERS_PARALLELISM=false VERL_FILE_LOGGER_PATH="$OUTPUT_DIR/metrics.jsonl"
mkdir -p "$OUTPUT_DIR"

# TORCHRUN holds several words.
# shellcheck disable=SC2086
exec "$PYTHON" -m torch.distributed.run $TORCHRUN --nproc-per-node "${N_GPUS:-2}" -m verl.trainer.sft_trainer \
    data.train_files="$TRAIN" \
    data.val_files="${VAL_FILES:-null}" \
    data.train_batch_size="${BATCH:-64}" \
    data.micro_batch_size_per_gpu="${MICRO_BATCH:-4}" \
    data.max_length="${MAX_LENGTH:-1024}" \
    data.max_token_len_per_gpu=8192 \
    data.truncation=right \
    model.path="$MODEL" \
    optim.lr="${LR:-3e-5}" \
    optim.lr_warmup_steps_ratio=0.03 \
    optim.lr_scheduler_type=cosine \
    checkpoint.save_contents=[model,optimizer,extra,hf_model] \
    trainer.default_local_dir="$OUTPUT_DIR/checkpoints" \
    trainer.project_name=prime_ext \
    trainer.experiment_name=pspo_wrs_sft \
    trainer.logger=[console,file] \
    trainer.n_gpus_per_node="${N_GPUS:-2}" \
    trainer.total_epochs="${EPOCHS:-1}" \
    trainer.save_freq="${SAVE_FREQ:-200}" \
    trainer.max_ckpt_to_keep=2 \
    "$@"
