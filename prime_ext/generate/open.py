# SPDX-License-Identifier: Apache-2.0
"""The flags that every command offers for a backend, and the backend that they ask for."""

import argparse
import importlib.util
from typing import Any

from prime_ext.generate.backend import KINDS, Backend, BackendOptions, flag_of, optional_fields


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all backends, in a group of their own."""
    group = parser.add_argument_group("the model and what runs it")
    group.add_argument(
        "--backend",
        choices=KINDS,
        help="vLLM, transformers, or a server that runs (default: vllm where it is installed and there is a GPU, else "
        "transformers)",
    )
    group.add_argument(
        "--model",
        default="",
        help="a Hugging Face folder or hub id, a checkpoint of verl or a LoRA adapter; of a server the name it serves",
    )
    for each in optional_fields():
        group.add_argument(
            flag_of(each.name),
            default=None,
            help=f"{each.metadata['help']} [{', '.join(each.metadata['kinds'])}]".replace("%", "%%"),
            **each.metadata["flag"],
        )


def _usual_kind() -> str:
    """vLLM where it is installed and there is a GPU for it, else transformers."""
    if importlib.util.find_spec("vllm") is None:
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() else "transformers"


def backend_from_arguments(arguments: argparse.Namespace) -> Backend:
    """:func:`open_backend` as the flags of :func:`add_backend_arguments` ask for."""
    options = {each.name: getattr(arguments, each.name) for each in optional_fields()}
    return open_backend(arguments.backend or _usual_kind(), arguments.model, **options)


def open_backend(kind: str, model: str, **options: Any) -> Backend:
    """Open a backend with these :class:`BackendOptions`.

    Raises:
        BackendError: options that do not fit together, or no such model; one line that says what would be right.
    """
    asked = BackendOptions(kind=kind, model=model, **options)
    # torch, transformers and vLLM take seconds to import, so only what is used is.
    if kind == "transformers":
        from prime_ext.generate.transformers_backend import TransformersBackend

        return TransformersBackend(asked)
    if kind == "vllm":
        from prime_ext.generate.vllm_backend import VLLMBackend

        return VLLMBackend(asked)
    from prime_ext.generate.server import ServerBackend

    limits = asked.given("concurrency", "attempts", "timeout", "deadline")
    return ServerBackend(asked.base_url or "", model, asked.api_key_env or "", **limits)
