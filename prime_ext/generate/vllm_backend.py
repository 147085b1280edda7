# SPDX-License-Identifier: Apache-2.0
"""vLLM on this machine as a backend: data-parallel copies of a tensor-parallel model.

FlashInfer compiles kernels at run time, with the CUDA toolkit of torch's version (13.0), which pip
does not install. vLLM would sample with it, so here it does not, unless
``VLLM_USE_FLASHINFER_SAMPLER`` says so. On a B200 vLLM also attends with FlashInfer: install the
toolkit there, or use ``vllm serve MODEL --attention-backend FLASH_ATTN`` with ``--backend server``.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from prime_ext.generate.backend import (
    BackendError,
    Request,
    Response,
    Sampling,
    build_failure,
    stream,
)
from prime_ext.generate.local_model import LocalBackend, catch_loading_errors


class VLLMBackend(LocalBackend):
    """Model in vLLM, started by the first requests. Raises ``BackendError``: it cannot run here."""

    kind = "vllm"

    def __init__(
        self,
        model: str,
        *,
        tensor_parallel: int = 1,
        data_parallel: int = 1,
        gpu_memory_utilization: float | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise BackendError(
                "vLLM is not installed: pip install 'prime-ext[gpu]', or use --backend transformers"
                " or --backend server"
            )
        import torch

        on_cpu = not torch.cuda.is_available()
        n_devices = torch.cuda.device_count()
        needed = tensor_parallel * (1 if on_cpu else data_parallel)
        if needed > max(1, n_devices):
            flags = f"--tensor-parallel {tensor_parallel} with --data-parallel {data_parallel}"
            raise BackendError(f"{flags} needs {needed} GPUs, there are {n_devices}")
        super().__init__(model, on_cpu, **options)
        # Of vLLM's AsyncEngineArgs.
        self.arguments: dict[str, Any] = {
            "model": self.path,
            **self.hub,
            "dtype": self.dtype,
            "tensor_parallel_size": tensor_parallel,
            "data_parallel_size": data_parallel,
            "max_model_len": self.context,
            "max_num_seqs": batch_size,  # None: vLLM's own for the device
            "disable_log_stats": True,
        }
        if gpu_memory_utilization is not None:
            self.arguments["gpu_memory_utilization"] = gpu_memory_utilization
        self._exit = ExitStack()
        self._portal: BlockingPortal | None = None
        self._engine: Any = None
        self._n_requests = 0

    def description(self) -> dict[str, Any]:
        return super().description() | {"tensor_parallel": self.arguments["tensor_parallel_size"]}

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        yield from stream(self._start(), partial(self._answer_all, requests))

    def close(self) -> None:
        if self._portal is not None:
            self._portal.call(self._engine.shutdown)
        self._exit.close()
        self._portal = self._engine = None

    def _start(self) -> BlockingPortal:
        """Return the event loop of the engine; the first call starts both."""
        if self._portal is None:
            # vLLM's processes import the main program again; a fork would copy its threads.
            os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1"}
            os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
            with catch_loading_errors(self.path), ExitStack() as opened:
                portal = opened.enter_context(start_blocking_portal())
                self._engine = portal.call(_engine, self.arguments)
                self._portal = portal
                self._exit = opened.pop_all()
        return self._portal

    async def _answer_all(
        self, requests: Sequence[Request], put: Callable[[Response], None]
    ) -> None:
        async with anyio.create_task_group() as group:
            for request in requests:
                group.start_soon(self._answer, request, put)

    async def _answer(self, request: Request, put: Callable[[Response], None]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        ids = self.ids(request)
        arguments = build_sampling_arguments(request.sampling, request.seed)
        self._n_requests += 1
        outputs = self._engine.generate(
            {"prompt_token_ids": ids},
            SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY),
            str(self._n_requests),
        )
        try:
            async for output in outputs:
                completion = output.outputs[0]
        # Of this request, or of an engine that is gone, which all others will report, too.
        except Exception as error:
            return put(build_failure(request, f"vLLM: {type(error).__name__}: {error}", len(ids)))
        if completion.finish_reason not in ("stop", "length"):
            return put(
                build_failure(
                    request, f"vLLM ended the response: {completion.finish_reason}", len(ids)
                )
            )
        put(
            Response(
                request.key,
                completion.text,
                len(completion.token_ids),
                len(ids),
                completion.finish_reason,
            )
        )


async def _engine(arguments: dict[str, Any]) -> Any:
    """Make vLLM's asynchronous engine in the event loop that uses it."""
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    # vLLM's limits for requests that are all there: 16,384 tokens and 1,024 rows on an H100.
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS
    )


def build_sampling_arguments(sampling: Sampling, seed: int) -> dict[str, Any]:
    """Return arguments of vLLM's ``SamplingParams``, whose signed seeds drop the highest bit."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_tokens": sampling.min_new_tokens,
        "max_tokens": sampling.max_new_tokens,
        "stop": list(sampling.stop),
        "seed": seed & (2**63 - 1) if sampling.temperature > 0 else None,
    }
