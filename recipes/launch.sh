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
# What the training recipes share: the plan of a run in place of the run, and the run itself.
# Sourced with PROJECT_ROOT and PYTHON set.

# launch CONFIG OVERRIDES...: replace this shell by the training run. With DRY_RUN=1 the configuration is composed and checked
# instead, and its memory, time and disk space are printed; nothing is read but the sizes of the models, and no GPU is
# needed. Knobs of the plan: DEVICE_MEMORY (GiB, default 80), MEAN_TOKENS (prompt and response, for the hours).
# Status of a dry run: 0 it fits, 1 it would not start or not fit, 2 there is no plan.
launch() {
    local config=$1
    shift
    if [[ "${DRY_RUN:-0}" != 0 ]]; then
        exec "$PYTHON" -m prime_ext.doctor --plan --config-name "$config" --device-memory "${DEVICE_MEMORY:-80}" \
            --model-configs "$PROJECT_ROOT/recipes/model_configs" ${MEAN_TOKENS:+--mean-tokens "$MEAN_TOKENS"} "$@"
    fi
    set -x
    exec "$PYTHON" -m prime_ext.train --config-name="$config" "$@"
}

# dry_run: whether this is one, so that nothing is prepared or written.
dry_run() { [[ "${DRY_RUN:-0}" != 0 ]]; }
