# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine in a process of :mod:`prime_ext.generate.engine_processes`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prime_ext.generate.backend import Sampling


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is made of.

    Attributes:
        arguments: of vLLM's ``EngineArgs``.
        adapter: a LoRA adapter that all requests use; None for none.
    """

    arguments: dict[str, Any]
    adapter: str | None = None


@dataclass(frozen=True)
class Job:
    """A prompt and how it is answered."""

    ids: list[int]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Output:
    """A response."""

    text: str
    tokens: int
    finish: str


def sampling_arguments(sampling: Sampling, seed: int) -> dict[str, Any]:
    """Arguments of vLLM's ``SamplingParams``, without those that only steer what it returns.

    Seeds are signed 64-bit numbers there, so the highest bit is left out, as for a server.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_tokens": sampling.min_new_tokens,
        "max_tokens": sampling.max_new_tokens,
        "stop": list(sampling.stop),
        "seed": seed & (2**63 - 1) if sampling.temperature > 0 else None,
    }


class VLLMEngine:
    """See :class:`~prime_ext.generate.engine_processes.Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        from vllm import EngineArgs, LLMEngine, SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind

        self._engine = LLMEngine.from_engine_args(EngineArgs(**settings.arguments))
        self._params, self._final = SamplingParams, RequestOutputKind.FINAL_ONLY
        self._adapter = LoRARequest("adapter", 1, settings.adapter) if settings.adapter is not None else None

    def add(self, number: int, job: Job) -> None:
        params = self._params(**sampling_arguments(job.sampling, job.seed), output_kind=self._final)
        prompt: Any = {"prompt_token_ids": job.ids}
        self._engine.add_request(str(number), prompt, params, lora_request=self._adapter)

    def abort(self, numbers: Sequence[int]) -> None:
        self._engine.abort_request([str(number) for number in numbers])

    def has_work(self) -> bool:
        return bool(self._engine.has_unfinished_requests())

    def step(self) -> list[tuple[int, Output]]:
        outputs: Sequence[Any] = self._engine.step()
        finished = [output for output in outputs if output.finished]
        return [(int(output.request_id), _read(output.outputs[0])) for output in finished]

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def _read(completion: Any) -> Output:
    finish = completion.finish_reason if completion.finish_reason in ("stop", "length") else "failed"
    return Output(completion.text, len(completion.token_ids), finish)
