# SPDX-License-Identifier: Apache-2.0
"""Opens a backend by name, so that every command offers the same ones with the same flags."""

import argparse
from typing import Any

from prime_ext.generate.backend import Backend
from prime_ext.generate.http_retry import RetryPolicy
from prime_ext.generate.options import BackendOptions, add_backend_arguments, options_from_arguments

__all__ = ["add_backend_arguments", "backend_from_arguments", "open_backend"]


def open_backend(kind: str, model: str, **options: Any) -> Backend:
    """Open a backend.

    Args:
        kind: ``vllm``, ``transformers`` or ``server``.
        model: see :class:`~prime_ext.generate.options.BackendOptions`.
        options: the others of :class:`~prime_ext.generate.options.BackendOptions`, by name.

    Raises:
        BackendError: options that do not fit together, or no such model; one line that says what would be right.
    """
    return _open(BackendOptions(kind=kind, model=model, **options))


def backend_from_arguments(arguments: argparse.Namespace) -> Backend:
    """Open what the flags of :func:`add_backend_arguments` ask for.

    Raises:
        BackendError: as in :func:`open_backend`.
    """
    return _open(options_from_arguments(arguments))


def _open(options: BackendOptions) -> Backend:
    # torch, transformers and vLLM take seconds to import, so only what is used is.
    if options.kind == "transformers":
        from prime_ext.generate.transformers_backend import open_transformers

        return open_transformers(options)
    if options.kind == "vllm":
        from prime_ext.generate.vllm_offline import open_vllm

        return open_vllm(options)
    from prime_ext.generate.server import ServerBackend

    limits = {
        "attempts": options.attempts,
        "timeout_seconds": options.timeout,
        "deadline_seconds": options.deadline,
    }
    return ServerBackend(
        options.base_url or "",
        options.model,
        options.api_key_env or "",
        options.concurrency or 16,
        RetryPolicy(**{name: value for name, value in limits.items() if value is not None}),  # type: ignore[arg-type]
    )
