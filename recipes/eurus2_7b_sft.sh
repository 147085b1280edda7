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
# Eurus-2-7B-SFT on GPUs: the start of PRIME's policy and PRM, with verl's own SFT trainer (arXiv 2502.01456).
#
#   bash recipes/eurus2_7b_sft.sh TRAIN_PARQUET [overrides of verl's sft_trainer_engine ...]
#   bash recipes/eurus2_7b_sft.sh data/sft/problems.parquet
#
# TRAIN_PARQUET has a column messages: of python -m data_preprocessing.sft_data, or any other. Several files: "[a,b]".
# The paper's data are 229,763 conversations of 1,391 tokens on average; its settings are the defaults here: all weights
# of Qwen2.5-Math-7B, lr 1e-5, cosine, warm-up over a tenth of the steps, 96 conversations per update, 3 epochs, seed 42,
# 6,144 tokens (that of the authors' published configuration). On the paper's data that is 7,179 updates. 6,144 tokens are
# more than the 4,096 positions that the base model was trained with; MAX_LENGTH=4096 keeps to them. After an interruption
# the same command goes on from its last checkpoint, which holds a Hugging Face folder, too.
#
# NEVER RUN ON A GPU: its settings are composed by a test on the CPU.
set -euo pipefail

if [[ $# -lt 1 || "$1" == "-h" || "$1" == "--help" ]]; then
    sed -n '/^# Eurus-2-7B-SFT on GPUs/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-
    echo "Knobs (environment): MODEL OUTPUT_DIR VAL_FILES N_GPUS NNODES BATCH LR EPOCHS MAX_LENGTH TOKENS_PER_GPU"
    echo "ULYSSES SAVE_FREQ SEED PYTHON TORCHRUN"
    [[ $# -ge 1 ]] && exit 0 || exit 2
fi
TRAIN=$1
shift
PYTHON=${PYTHON:-$(command -v python3)}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/eurus2_7b_sft}
N_GPUS=${N_GPUS:-8}
MAX_LENGTH=${MAX_LENGTH:-6144}
SEED=${SEED:-42}
TORCHRUN=${TORCHRUN:---standalone}
export TOKENIZERS_PARALLELISM=false VERL_FILE_LOGGER_PATH="$OUTPUT_DIR/metrics.jsonl"
mkdir -p "$OUTPUT_DIR"

# TORCHRUN holds several words.
# shellcheck disable=SC2086
exec "$PYTHON" -m torch.distributed.run $TORCHRUN --nproc-per-node "$N_GPUS" -m verl.trainer.sft_trainer \
    data.train_files="$TRAIN" \
    data.val_files="${VAL_FILES:-null}" \
    data.train_batch_size="${BATCH:-96}" \
    data.max_length="$MAX_LENGTH" \
    data.max_token_len_per_gpu="${TOKENS_PER_GPU:-$((2 * MAX_LENGTH))}" \
    data.truncation=right \
    model.path="${MODEL:-Qwen/Qwen2.5-Math-7B}" \
    model.enable_gradient_checkpointing=true \
    model.use_remove_padding=true \
    optim.lr="${LR:-1e-5}" \
    optim.lr_warmup_steps_ratio=0.1 \
    optim.lr_scheduler_type=cosine \
    engine.seed="$SEED" \
    engine.ulysses_sequence_parallel_size="${ULYSSES:-1}" \
    checkpoint.save_contents=[model,optimizer,extra,hf_model] \
    trainer.default_local_dir="$OUTPUT_DIR/checkpoints" \
    trainer.project_name=prime_ext \
    trainer.experiment_name=eurus2_7b_sft \
    trainer.logger=[console,file] \
    trainer.seed="$SEED" \
    trainer.nnodes="${NNODES:-1}" \
    trainer.n_gpus_per_node="$N_GPUS" \
    trainer.total_epochs="${EPOCHS:-3}" \
    trainer.save_freq="${SAVE_FREQ:-500}" \
    trainer.max_ckpt_to_keep=2 \
    "$@"
