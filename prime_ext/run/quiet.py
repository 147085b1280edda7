# SPDX-License-Identifier: Apache-2.0
"""Hides notes of dependencies that are about neither the run nor anything a user could change.

Each is named here by its origin and its first words; every other warning is shown. ``PYTHONWARNINGS`` or ``python -W``
leaves Python's warnings as they ask for, and ``VERL_LOGGING_LEVEL=INFO`` brings back what verl tells of its progress.
"""

import logging
import os
import sys
import warnings
from functools import cache, partial
from types import ModuleType
from typing import Any

import wrapt

# First words (a regular expression), and the module that is warned about.
_WARNINGS = (
    # verl's optional engines; one that is chosen and not installed is an error of its own.
    (r"\w+ engine is not available", r"verl\.workers\.engine"),
    # Whether there is a critic follows from the estimator.
    (r"Disabled critic as algorithm\.adv_estimator != gae", r"verl\.trainer\."),
    (r"'set_vital' is deprecated", r"torchdata\."),
)
# Logger, and first words of the message.
_RECORDS = (
    # verl's and TransferQueue's way of waiting.
    ("ray._private.worker", "Using blocking ray.get inside async actor"),
    ("ray._private.authentication.authentication_token_setup", "Token authentication is enabled for this Ray cluster"),
    ("torch.fx._symbolic_trace", "is_fx_tracing will return true"),
    ("transformers.configuration_utils", "`torch_dtype` is deprecated"),
    # Told for every rollout of a model family that verl has no special rule for, Llama among them.
    ("verl.utils.tokenizer.continuous_token_wiring", "No model-specific Continuous Token builder is registered"),
)
_LEVELS = {"VERL_LOGGING_LEVEL": "WARNING", "TQ_LOGGING_LEVEL": "WARNING"}


@cache
def install() -> None:
    """Hide them in this process; a second call changes nothing. verl's plug-in calls it in every process."""
    if not sys.warnoptions:
        for start, module in _WARNINGS:
            warnings.filterwarnings("ignore", start, UserWarning, module)
    for name, start in _RECORDS:
        logging.getLogger(name).addFilter(partial(_begins_otherwise, start))
    wrapt.register_post_import_hook(_without_dumps, "verl.trainer.main_ppo")


def _begins_otherwise(start: str, record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(start)


def set_levels() -> None:
    """Let verl and its store of rollouts speak up from warnings on, here and in the processes of the run.

    For prime_ext's own commands; a level that the environment sets stays.
    """
    for name, level in _LEVELS.items():
        os.environ.setdefault(name, level)


def _without_dumps(module: ModuleType) -> None:
    """verl prints the whole configuration, which Hydra has written to a file, and Ray's arguments, at every start."""
    if os.environ.get("VERL_LOGGING_LEVEL", "INFO").upper() not in ("DEBUG", "INFO"):
        for name in ("print", "pprint"):
            setattr(module, name, silent)


def silent(*arguments: Any, **keywords: Any) -> None:
    """In place of printing."""
