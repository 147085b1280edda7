#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shared code of the two stages of EurusPRM. Sourced with MODEL_PATH, TRAIN_FILES and PRM_REFERENCE
# set, and OUTPUT_DIR exported.

# shellcheck source=recipes/launch.sh
source "$PROJECT_ROOT/recipes/launch.sh"

# train_eurusprm MISSING OVERRIDES...: replace this shell by offline training with the published
# settings. MISSING tells users how to get missing data.
train_eurusprm() {
    if ! rehearsal && [[ ! -e "$TRAIN_FILES" && "$TRAIN_FILES" != \[* ]]; then
        echo "$TRAIN_FILES does not exist; $1" >&2
        exit 2
    fi
    export N_PROC=${N_GPUS:-8}
    exec bash "$PROJECT_ROOT/recipes/train_implicit_prm.sh" "$MODEL_PATH" "$TRAIN_FILES" \
        data.max_length=4096 \
        prm.beta=0.05 \
        prm.reference_path="$PRM_REFERENCE" \
        optim.lr=5e-7 \
        batching.max_token_len_per_gpu="${TOKENS_PER_GPU:-8192}" \
        trainer.epochs=1 \
        trainer.logger="${LOGGER:-[console,tensorboard]}" \
        "${@:2}"
}
