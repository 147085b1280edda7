#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared code of the supervised recipes: a run shrunk for the CPU, and the run itself. Sourced with
# PROJECT_ROOT, OUTPUT_DIR and N_GPUS set.

# shellcheck source=recipes/launch.sh
source "$PROJECT_ROOT/recipes/launch.sh"
refuse_idle_nodes

# launch_supervised MODULE OVERRIDES...: replace this shell by the training, one process for each
# GPU of this machine.
# DRY_RUN=1 prints the command instead. With SHRINK=1 the same run makes two steps in one process on
# the CPU, with an untrained tiny model and generated rows. SFT makes SHRINK_STEPS, two to an epoch,
# and saves after every epoch.
launch_supervised() {
    local module=$1 processes=$N_GPUS
    shift
    ! shrink || processes=1
    # Loud, where verl hides errors of an entry point: a run of several epochs needs the plug-in's
    # patch to resume.
    export VERL_USE_EXTERNAL_MODULES="prime_ext.plugin${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES}"
    # TORCHRUN holds several words.
    # shellcheck disable=SC2206
    local command=("$PYTHON" -m torch.distributed.run ${TORCHRUN:---standalone} --nproc-per-node "$processes" -m "$module"
        "$@" "${SHRUNK[@]}")
    ! dry_run || not_planned "${command[@]}"
    set -x
    exec "${command[@]}"
}

# require_flash_attention OVERRIDES...: stop if flash-attn is missing, with which verl loads every
# model on a GPU unless the overrides name another attention.
require_flash_attention() {
    [[ "${VERL_PLATFORM:-}" != cpu && " $* " != *.attn_implementation=[!f]* ]] || return 0
    "$PYTHON" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("flash_attn") is None)' || {
        echo "${0##*/}: flash-attn is not installed: docs/how_to/install.md has how to get it; to do without it, add" \
            "+model.override_config.attn_implementation=sdpa" >&2
        exit 2
    }
}

# launch_sft NAME TRAIN OVERRIDES...: run verl's SFT trainer on all weights of MODEL. Needs BATCH,
# LR, EPOCHS, MAX_LENGTH, TOKENS_PER_GPU and SAVE_FREQ set.
launch_sft() {
    local name=$1 train=$2
    shift 2
    rehearsal || require_flash_attention "$@"
    dry_run || mkdir -p "$OUTPUT_DIR"
    # Each start has its own file, because verl would overwrite that of an earlier one.
    VERL_FILE_LOGGER_PATH="$OUTPUT_DIR/metrics_$(date -u +%Y%m%dT%H%M%S).jsonl"
    export VERL_FILE_LOGGER_PATH
    ! shrink || prepare_shrunk sft "$OUTPUT_DIR/inputs" model.path="$MODEL" ${SHRINK_STEPS:+--steps "$SHRINK_STEPS"}
    launch_supervised verl.trainer.sft_trainer \
        data.train_files="$train" \
        data.val_files="${VAL_FILES:-null}" \
        data.train_batch_size="$BATCH" \
        data.max_length="$MAX_LENGTH" \
        data.max_token_len_per_gpu="$TOKENS_PER_GPU" \
        data.truncation=right \
        model.path="$MODEL" \
        model.enable_gradient_checkpointing=true \
        model.use_remove_padding=true \
        optim.lr="$LR" \
        optim.lr_scheduler_type=cosine \
        engine.ulysses_sequence_parallel_size="${ULYSSES:-1}" \
        checkpoint.save_contents=[model,optimizer,extra,hf_model] \
        trainer.default_local_dir="$OUTPUT_DIR/checkpoints" \
        trainer.project_name=prime_ext \
        trainer.experiment_name="$name" \
        trainer.logger=[console,file] \
        trainer.nnodes="${NNODES:-1}" \
        trainer.n_gpus_per_node="$N_GPUS" \
        trainer.total_epochs="$EPOCHS" \
        trainer.save_freq="$SAVE_FREQ" \
        trainer.max_ckpt_to_keep=2 \
        "$@"
}

export TOKENIZERS_PARALLELISM=false PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"
! shrink || OUTPUT_DIR=$OUTPUT_DIR/shrunk
