# SPDX-License-Identifier: Apache-2.0
"""The command line of the recipes' programs."""

import argparse
from pathlib import Path
from typing import Any

from prime_ext.utils.arguments import COUNT, SHARE, WHOLE
from prime_ext.utils.threads import use_one_thread

OPTIONS: dict[str, dict[str, Any]] = {
    "data": {"type": Path, "required": True, "help": "parquet file of problems"},
    "family": {
        "choices": ("llama", "qwen2", "qwen3", "qwen3_moe"),
        "help": "architecture of the model (default: llama)",
    },
    "labeler": {
        "choices": ("honest", "lenient", "rollouts"),
        "help": "source of the labels of steps (default: honest)",
    },
    "limit": {"type": COUNT, "help": "use only the first problems"},
    "mean-error": {"type": SHARE, "help": "mean error probability of the demonstrators"},
    "model": {"type": Path, "required": True, "help": "Hugging Face folder, or checkpoint of verl"},
    "output": {"type": Path, "required": True, "help": "JSON file to write"},
    "output-dir": {"type": Path, "required": True, "help": "folder to write"},
    "run-dir": {"type": Path, "required": True, "help": "folder of the run"},
    "seed": {"type": WHOLE, "help": "of everything that is drawn"},
    "step-rm": {"type": Path, "required": True, "help": "folder of the step reward model"},
    "steps": {"type": COUNT, "help": "of the optimizer"},
    "test-size": {"type": COUNT, "help": "held-out problems, for evaluation only"},
}


def read_options(description: str | None, *names: str) -> dict[str, Any]:
    """Read the given options; functions use their defaults for the others.

    The models of these programs are small, so torch gets one thread.
    """
    use_one_thread()
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=description, formatter_class=formatter, argument_default=argparse.SUPPRESS
    )
    for name in names:
        parser.add_argument(f"--{name}", **OPTIONS[name])
    return vars(parser.parse_args())
