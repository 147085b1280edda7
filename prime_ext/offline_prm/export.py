# SPDX-License-Identifier: Apache-2.0
"""What an exported PRM says about itself, beside its weights."""

from importlib.metadata import version
from pathlib import Path

FILE = "prime_ext_prm.json"


def model_name(path: str) -> str:
    """A model's hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {name: version(name) for name in ("prime-ext", "verl", "torch", "transformers")}
