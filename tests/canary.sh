#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks another version of verl: looks up every name that prime_ext relies on in its wheel.
#
#   bash tests/canary.sh           the newest verl that pip offers
#   bash tests/canary.sh 0.9.0     this one
#
# Ends with status 1 and a line per name that is gone or changed (docs/how_to/upgrading_verl.md).
# PYTHON names the interpreter of an environment with prime_ext; default: .venv/bin/python.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-$root/.venv/bin/python}"
wheel="$(mktemp -d)"
trap 'rm -rf "$wheel"' EXIT
"$python" -m pip install -q --no-deps --only-binary :all: --target "$wheel" "verl${1:+==$1}"
ls "$wheel" | grep dist-info
PYTHONPATH="$wheel:$root" VERL_PLATFORM=cpu "$python" "$root/tests/support/verl_names.py"
