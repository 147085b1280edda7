# SPDX-License-Identifier: Apache-2.0
"""Copy policy and PRM, or one of the two, of the latest complete checkpoint to Hugging Face folders, in float32.

    python -m recipes.quickstart.export --checkpoints outputs/quickstart/checkpoints --output-dir outputs/quickstart

Needs ``hf_model`` among the saved contents. verl's ``python -m verl.model_merger`` makes a Hugging Face folder
from any FSDP checkpoint too, but it rounds the weights to bfloat16, and verl's own ``hf_model`` folder holds float32
weights under a configuration that says bfloat16; a small policy changes visibly by that rounding.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from prime_ext.run.checkpoint import complete_steps
from prime_ext.utils.files import atomic_path
from recipes.quickstart.evaluate import load_model

# Folder of the export, folder of the checkpoint.
ROLES = {"policy": "actor", "prm": "prm"}


def export(checkpoints: Path, output_dir: Path, names: Sequence[str] = tuple(ROLES)) -> int:
    """Write ``policy`` and ``prm``, or some of them, below ``output_dir``; returns the step of the checkpoint.

    Raises:
        FileNotFoundError: there is no complete checkpoint, or it holds no Hugging Face weights.
    """
    steps = complete_steps(checkpoints)
    if not steps:
        raise FileNotFoundError(f"no complete checkpoint in {checkpoints}")
    for name in names:
        role = ROLES[name]
        source = checkpoints / f"global_step_{steps[-1]}" / role / "huggingface"
        if not (source / "model.safetensors").is_file():
            raise FileNotFoundError(f"{source} holds no weights; train with hf_model among the checkpoint contents")
        model, tokenizer = load_model(source)
        with atomic_path(output_dir / name) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        print(f"{output_dir / name}: {role} of step {steps[-1]}")
    return steps[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="trainer.default_local_dir of the run")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES))
    arguments = parser.parse_args()
    export(arguments.checkpoints, arguments.output_dir, arguments.roles)


if __name__ == "__main__":
    main()
