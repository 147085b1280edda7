# SPDX-License-Identifier: Apache-2.0
"""The flags that every command offers for a backend, and the backend they select."""

import argparse
import importlib.util
import json
from typing import Any

from prime_ext.generate.backend import Backend, BackendError

KINDS = ("vllm", "transformers", "server")
_LOCAL = ("vllm", "transformers")
_SERVER = ("server",)
_INTEGER = {"type": int}
_NUMBER = {"type": float}
_DTYPES = {"choices": ("auto", "float32", "bfloat16", "float16", "float64")}


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} must be a JSON object")
    return value


# By name of the argument: the backends that read it, its help, and argparse's options.
_OPTIONS: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "base_url": (
        _SERVER,
        "URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1",
        {},
    ),
    "api_key_env": (_SERVER, "environment variable that holds the server's key", {}),
    "concurrency": (_SERVER, "requests at a time (default: 16)", _INTEGER),
    "attempts": (_SERVER, "attempts per request (default: 8)", _INTEGER),
    "timeout": (_SERVER, "seconds for one attempt (default: 1800)", _NUMBER),
    "chat_template_kwargs": (
        KINDS,
        "variables of the chat template, such as '{\"enable_thinking\": false}'",
        {"type": _read_object, "metavar": "JSON"},
    ),
    "dtype": (
        _LOCAL,
        "of weights and computation (default: auto: float32 on the CPU, else bfloat16)",
        _DTYPES,
    ),
    "device": (
        ("transformers",),
        "such as cpu, cuda or cuda:1 (default: cuda if there is one)",
        {},
    ),
    "tensor_parallel": (("vllm",), "devices per copy of the model (default: 1)", _INTEGER),
    "data_parallel": (("vllm",), "copies of the model, a process each (default: 1)", _INTEGER),
    "gpu_memory_utilization": (("vllm",), "share of a device's memory (default: 0.9)", _NUMBER),
    "max_model_len": (
        _LOCAL,
        "longest prompt and response (default: the model's context)",
        _INTEGER,
    ),
    "batch_size": (
        _LOCAL,
        "responses made at a time (default: 64, tiny models 512, vLLM's own)",
        _INTEGER,
    ),
    "revision": (_LOCAL, "commit, branch or tag of a model on the hub", {}),
    "trust_remote_code": (
        _LOCAL,
        "run model code that comes with the model",
        {"action": "store_true"},
    ),
}


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all backends, in one group."""
    group = parser.add_argument_group("the model and what runs it")
    group.add_argument(
        "--backend",
        choices=KINDS,
        help=(
            "vLLM, transformers, or a server that runs (default: vllm where it is installed and"
            " there is a GPU, else transformers)"
        ),
    )
    group.add_argument(
        "--model",
        default="",
        help=(
            "a Hugging Face folder or hub id, or a checkpoint of verl; of a server the name it"
            " serves"
        ),
    )
    for name, (kinds, text, words) in _OPTIONS.items():
        help_text = f"{text} [{', '.join(kinds)}]".replace("%", "%%")
        group.add_argument(_flag(name), default=None, help=help_text, **words)


def backend_from_arguments(arguments: argparse.Namespace) -> Backend:
    """Open the backend that the flags of :func:`add_backend_arguments` select."""
    options = {name: getattr(arguments, name) for name in _OPTIONS}
    kind = arguments.backend
    if kind is None:
        import torch

        kind = (
            "vllm"
            if importlib.util.find_spec("vllm") and torch.cuda.is_available()
            else "transformers"
        )
    return open_backend(kind, arguments.model, **options)


def open_backend(kind: str, model: str, **options: Any) -> Backend:
    """Open a backend by its flags, with underscores; raise ``BackendError`` if they do not fit."""
    if kind not in KINDS:
        raise BackendError(f"--backend {kind} must be one of {', '.join(KINDS)}")
    chosen = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    for name, value in chosen.items():
        kinds, _, words = _OPTIONS[name]
        if kind not in kinds:
            readers = " or ".join(f"--backend {reader}" for reader in kinds)
            raise BackendError(
                f"{_flag(name)} means nothing to --backend {kind}; leave it out, or use {readers}"
            )
        if words.get("type") in (int, float) and not value > 0:
            raise BackendError(f"{_flag(name)} {value} must be positive")
    if kind == "server" and not chosen.get("base_url"):
        raise BackendError(
            "--backend server needs its address: --base-url http://127.0.0.1:8000/v1"
        )
    if kind != "server" and not model:
        raise BackendError(f"--backend {kind} needs --model: a folder, a hub id or a checkpoint")
    # torch, transformers and vLLM take seconds to import.
    if kind == "transformers":
        from prime_ext.generate.transformers_backend import TransformersBackend

        return TransformersBackend(model, **chosen)
    if kind == "vllm":
        from prime_ext.generate.vllm_backend import VLLMBackend

        return VLLMBackend(model, **chosen)
    from prime_ext.generate.server_backend import ServerBackend

    return ServerBackend(model=model, **chosen)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
