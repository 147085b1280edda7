# SPDX-License-Identifier: Apache-2.0
"""How a backend is opened: the flags that every command offers, and which backend reads which."""

import argparse
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError

KINDS = ("vllm", "transformers", "server")
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_LOCAL = ("vllm", "transformers")


def _option(kinds: tuple[str, ...], text: str, **flag: Any) -> Any:
    """A field with what its flag says: the backends that read it, the help, and argparse's own words."""
    return field(default=None, metadata={"kinds": kinds, "help": text, "flag": flag})


@dataclass(frozen=True)
class BackendOptions:
    """How a backend is opened. None leaves a choice to the backend; what a backend does not read must be None.

    Attributes:
        kind: one of :data:`KINDS`.
        model: a Hugging Face folder or hub id, a checkpoint of verl, an adapter; of a server the name it serves.
    """

    kind: str
    model: str
    base_url: str | None = _option(("server",), "URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    api_key_env: str | None = _option(("server",), "environment variable that holds the server's key")
    concurrency: int | None = _option(("server",), "requests at a time (default: 16)", type=int)
    attempts: int | None = _option(("server",), "attempts per request (default: 6)", type=int)
    timeout: float | None = _option(("server",), "seconds for one attempt (default: 1800)", type=float)
    deadline: float | None = _option(("server",), "seconds for a request with all attempts (default: 7200)", type=float)
    dtype: str | None = _option(
        _LOCAL, "of weights and computation (default: auto: float32 on the CPU, else bfloat16)", choices=DTYPES
    )
    device: str | None = _option(("transformers",), "such as cpu, cuda or cuda:1 (default: cuda if there is one)")
    tensor_parallel: int | None = _option(("vllm",), "devices per copy of the model (default: 1)", type=int)
    data_parallel: int | None = _option(("vllm",), "copies of the model, a process each (default: 1)", type=int)
    gpu_memory_utilization: float | None = _option(("vllm",), "share of a device's memory (default: 0.9)", type=float)
    max_model_len: int | None = _option(_LOCAL, "longest prompt and response (default: the model's context)", type=int)
    batch_size: int | None = _option(
        _LOCAL, "responses made at a time (default: 64 for transformers, vLLM's own for vllm)", type=int
    )
    chat_template: Path | None = _option(_LOCAL, "file with a Jinja chat template instead of the model's", type=Path)
    revision: str | None = _option(_LOCAL, "commit, branch or tag of a model on the hub")
    lora: str | None = _option(_LOCAL, "folder or hub id of a LoRA adapter to apply to the model")
    trust_remote_code: bool | None = _option(_LOCAL, "run model code that comes with the model", action="store_true")

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BackendError(f"--backend {self.kind} is none of {', '.join(KINDS)}")
        for each in _optional_fields():
            value = getattr(self, each.name)
            if value is None or value is False:
                continue
            flag = flag_of(each.name)
            if self.kind not in each.metadata["kinds"]:
                readers = " or ".join(f"--backend {kind}" for kind in each.metadata["kinds"])
                raise BackendError(f"{flag} means nothing to --backend {self.kind}; leave it out, or use {readers}")
            if each.metadata["flag"].get("type") in (int, float) and not value > 0:
                raise BackendError(f"{flag} {value} must be positive")
        if self.kind == "server" and not self.base_url:
            raise BackendError("--backend server needs its address: --base-url http://127.0.0.1:8000/v1")
        if self.kind != "server" and not self.model:
            raise BackendError(f"--backend {self.kind} needs --model: a folder, a hub id or a checkpoint")
        if self.gpu_memory_utilization is not None and self.gpu_memory_utilization > 1:
            raise BackendError(f"--gpu-memory-utilization {self.gpu_memory_utilization} is a share, at most 1")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise BackendError(f"--dtype {self.dtype} is none of {', '.join(DTYPES)}")
        if self.kind == "vllm" and self.dtype == "float64":
            raise BackendError("--dtype float64 is only for --backend transformers")

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the named options that are not left to the backend."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _optional_fields() -> list[Any]:
    return [each for each in fields(BackendOptions) if each.metadata]


def flag_of(name: str) -> str:
    """Of an option, on the command line."""
    return f"--{name.replace('_', '-')}"


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
    for each in _optional_fields():
        group.add_argument(
            flag_of(each.name),
            default=None,
            help=f"{each.metadata['help']} [{', '.join(each.metadata['kinds'])}]".replace("%", "%%"),
            **each.metadata["flag"],
        )


def usual_kind() -> str:
    """vLLM where it is installed and there is a GPU for it, else transformers."""
    if importlib.util.find_spec("vllm") is None:
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() else "transformers"


def options_from_arguments(arguments: argparse.Namespace) -> BackendOptions:
    """The options of a parsed command line.

    Raises:
        BackendError: they do not fit together.
    """
    values: Mapping[str, Any] = {each.name: getattr(arguments, each.name) for each in _optional_fields()}
    return BackendOptions(kind=arguments.backend or usual_kind(), model=arguments.model, **values)
