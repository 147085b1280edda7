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
# Installs what the tests need and runs them (about half an hour on 2 cores, installation included).
#
#   bash tests/run.sh [pytest arguments ...]
#
# Without arguments: everything but the tests that need vLLM's CPU build (see .ci/run for those).
set -euo pipefail

case "${1:-}" in
    -h | --help) sed -n '/^# Installs what/,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | cut -c3-; exit 0 ;;
esac
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
bash recipes/make_environment.sh
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0
if [[ $# -eq 0 ]]; then
    # Two processes: the whole runs with Ray are waiting most of the time while the others compute.
    set -- -m "not vllm" -n 2 --dist loadfile --durations 8
fi
exec "$root/.venv/bin/python" -m pytest "$@"
