#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes or brings up to date the environment of this project in .venv (CPU build of torch,
# development tools).
#
#   bash recipes/make_environment.sh
#
# A second run ends at once if nothing has changed, and completes a run that was interrupted.
# A .venv that is a link, or that this script has not made, is not changed: the script lists what it
# lacks, and stops.
# Knobs (environment variables):
#   PYTHON              interpreter to make .venv with (default python3; Python 3.10 or newer)
#   TORCH_INSTALL_ARGS  arguments of the pip call that installs torch (default: torch==2.13.0). Where pip's own
#                       configuration would bring the CUDA build (several GB, not needed here), name the index of CPU
#                       wheels of PyTorch: TORCH_INSTALL_ARGS="torch==2.13.0 --index-url URL"
set -euo pipefail

PYTHON="${PYTHON:-python3}"
TORCH_VERSION=2.13.0
TORCH_INSTALL_ARGS="${TORCH_INSTALL_ARGS:-torch==$TORCH_VERSION}"

case "${1:-}" in
  -h | --help) sed -n '/^# Makes or brings/,/^set -euo/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; exit 0 ;;
  ?*) echo "make_environment.sh takes no arguments, got: $1 (see --help)" >&2; exit 2 ;;
esac

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/prime_ext_environment"

# Everything the environment depends on. The path counts too: a virtual environment cannot be moved.
wanted="$(cat "$root/pyproject.toml" "${BASH_SOURCE[0]}" - <<< "$root $TORCH_INSTALL_ARGS" | cksum)"
if [[ -x "$venv/bin/python" && -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
  echo "Environment is up to date: $venv"
  exit 0
fi

# Not made by this script, so only checked.
if [[ -L "$venv" || (-x "$venv/bin/python" && ! -f "$stamp") ]]; then
  lacks="$("$venv/bin/python" - "$root/pyproject.toml" << 'PYTHON'
import re
import sys
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement

text = open(sys.argv[1]).read()
for needed in re.findall('"(.+?)"', text[text.index("\ndependencies = [") : text.index("\ngpu = [")]):
    requirement = Requirement(needed)
    try:
        fits = requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        fits = False
    if not fits:
        print(f"'{needed}'", end=" ")
PYTHON
  )" || lacks="what pyproject.toml lists"
  if [[ -z "$lacks" ]]; then
    echo "Environment is used as it is: $venv"
    exit 0
  fi
  echo "$venv was not made by make_environment.sh, so nothing is installed there; it lacks ${lacks% }." \
    "Install that yourself, or move $venv away and run this again." >&2
  exit 2
fi

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "$PYTHON is missing or older than Python 3.10; set PYTHON to a newer interpreter." >&2
  exit 1
fi

if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
  echo "== 1/3 making $venv with $("$PYTHON" --version)"
  if ! "$PYTHON" -m venv --clear "$venv"; then
    echo "$PYTHON cannot make virtual environments; install its venv module (Debian, Ubuntu: package python3-venv)." >&2
    exit 1
  fi
else
  echo "== 1/3 going on with $venv"
fi
# Mark the environment as made by this script, but unfinished.
echo unfinished > "$stamp"

# Install torch alone first: the other packages then use this build.
echo "== 2/3 pip install $TORCH_INSTALL_ARGS"
# The knob holds several words on purpose. pip would compile the modules one by one.
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --no-compile $TORCH_INSTALL_ARGS
echo "== 3/3 pip install -e .[cpu,dev]"
"$venv/bin/python" -m pip install --no-compile -e "$root[cpu,dev]" "torch==$TORCH_VERSION"
"$venv/bin/python" -m pip install --no-compile -e "$root[reasoning-gym]" "torch==$TORCH_VERSION" \
  || echo "Note: reasoning-gym is not installed, as pip cannot build its pycosat without a C compiler; its tests are skipped."

"$venv/bin/python" - <<'PYTHON'
import torch

if torch.version.cuda is not None:
    print("Note: this is the CUDA build of torch. It works on the CPU too; see TORCH_INSTALL_ARGS for the smaller one.")
PYTHON
# Some packages carry files for other versions of Python, which do not compile.
"$venv/bin/python" -m compileall -q -j 0 "$venv/lib" > /dev/null 2>&1 || true
printf '%s\n' "$wanted" > "$stamp.new"
mv "$stamp.new" "$stamp"
echo "Environment is ready after $SECONDS s: $venv"
