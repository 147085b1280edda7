# SPDX-License-Identifier: Apache-2.0
"""The rollout server of CPU mode: requests in, completions out, weights updated in between.

:class:`TransformersServer` has the methods that verl's trainer, clients and checkpoint engine call
on a rollout server.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from prime_ext.generate.generation import (
    BatchedGenerator,
    GenerationOutput,
    GenerationRequest,
    end_tokens,
    stable_seed,
)
from prime_ext.verl_adapter.cpu.weights import WeightLoader

# float64 makes sampled tokens independent of the batch to the last bit; see
# prime_ext.generate.generation.
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
# An idle server waits this long, so that requests that come together are prefilled together.
_GATHER_SECONDS = 0.005
# Sampling parameters that mean something only at other values than these.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "min_p", "prompt_logprobs"), (None, 0)
    ),
    **dict.fromkeys(("repetition_penalty", "n"), (None, 1)),
    "stop": (None, [], ()),
    "logprobs": (None, 0, 1),
}


def build_request(
    prompt_ids: Sequence[int],
    sampling_params: Mapping[str, Any],
    config: RolloutConfig,
    max_model_len: int,
    seed: int,
) -> GenerationRequest:
    """Translate a request of verl to a rollout server, with the length limits of its vLLM server.

    Raises ValueError: the prompt leaves no room, or a sampling parameter is not supported.
    """
    room = max_model_len - len(prompt_ids)
    if room < 1:
        raise ValueError(
            f"The prompt has {len(prompt_ids)} tokens, which leaves no room in"
            f" rollout.max_model_len={max_model_len}; set data.max_prompt_length (with"
            " data.filter_overlong_prompts=True) below it."
        )
    params = dict(sampling_params)
    default = min(
        config.response_length, config.prompt_length + config.response_length - len(prompt_ids)
    )
    limits = [params.pop(name, None) for name in ("max_tokens", "max_new_tokens")]
    max_new_tokens = next((limit for limit in limits if limit is not None), default)
    supported: dict[str, Any] = {
        "temperature": float(params.pop("temperature", 1.0)),
        "top_p": float(params.pop("top_p", 1.0)),
        "top_k": int(params.pop("top_k", -1)),
        "seed": int(seed),
        "min_new_tokens": int(params.pop("min_tokens", None) or 0),
        "stop_token_ids": tuple(params.pop("stop_token_ids", None) or ()),
        "ignore_eos": bool(params.pop("ignore_eos", config.ignore_eos)),
    }
    params.pop("seed", None)
    for name, value in params.items():
        if name not in _NEUTRAL_VALUES or value not in _NEUTRAL_VALUES[name]:
            raise ValueError(
                f"Sampling parameter {name}={value!r} is not supported by"
                " rollout.name=transformers; remove it, or use rollout.name=vllm."
            )
    return GenerationRequest(
        prompt_ids=prompt_ids, max_new_tokens=max(1, min(max_new_tokens, room)), **supported
    )


class TransformersServer:
    """Rollout server around :class:`~prime_ext.generate.generation.BatchedGenerator`.

    ``load_format=dummy`` starts without weights; the first update brings them. The seed of a
    request is ``sampling_params["seed"]`` where the agent loop gives one (``agent_loop.py``).
    Otherwise it is a hash of the rollout seed, the weights' version, the prompt and its number of
    earlier requests since the last update.
    """

    def __init__(self, config: RolloutConfig, model_config: Any) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.config: RolloutConfig = omega_conf_to_dataclass(config, dataclass_type=RolloutConfig)
        self.model_config: HFModelConfig = omega_conf_to_dataclass(
            model_config, dataclass_type=HFModelConfig
        )
        self.model, self._generator = self._load()
        positions = getattr(self.model.config, "max_position_embeddings", None)
        self._max_model_len = self.config.max_model_len or positions or 2**31
        if positions and self._max_model_len > positions:
            raise ValueError(
                f"rollout.max_model_len={self._max_model_len} exceeds the model's {positions}"
                " positions."
            )
        self.global_steps: int | None = None
        self._weights_problem = (
            "it has received no weights yet" if "dummy" in self.config.load_format else None
        )
        self._loader: WeightLoader | None = None
        self._paused = self._rejecting = False
        self._changed = asyncio.Condition()
        self._step_lock = asyncio.Lock()
        self._futures: dict[int, asyncio.Future[GenerationOutput]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._prompt_counts: Counter[tuple[int, ...]] = Counter()

    def _load(self) -> tuple[PreTrainedModel, BatchedGenerator]:
        if self.config.dtype not in _DTYPES:
            raise ValueError(
                f"rollout.dtype={self.config.dtype!r} is not supported; use one of {list(_DTYPES)}."
            )
        if self.config.logprobs_mode != "processed_logprobs":
            raise ValueError(
                f"rollout.logprobs_mode={self.config.logprobs_mode!r} must be processed_logprobs."
            )
        path = self.model_config.local_path
        tokenizer = self.model_config.tokenizer
        options = {
            "dtype": _DTYPES[self.config.dtype],
            "attn_implementation": self.model_config.override_config.get(
                "attn_implementation", "sdpa"
            ),
            "trust_remote_code": self.model_config.trust_remote_code,
        }
        if "dummy" in self.config.load_format:
            model = AutoModelForCausalLM.from_config(self.model_config.hf_config, **options)
        else:
            model = AutoModelForCausalLM.from_pretrained(path, **options)
        generation_config = (
            self.model_config.generation_config or GenerationConfig.from_model_config(model.config)
        )
        generator = BatchedGenerator(
            model.eval().requires_grad_(False).to(get_device_name()),
            eos_token_ids=end_tokens(tokenizer, generation_config),
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
            n_tokens=len(tokenizer),
            max_batch_size=self.config.max_num_seqs,
            max_prefill_tokens=self.config.max_num_batched_tokens,
        )
        return model, generator

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        **more: Any,
    ) -> TokenOutput:
        """Complete one prompt; while the server is paused or loads weights, wait or reject it.

        ValueError: the request is not supported. RuntimeError: the generation failed, or the
        weights are not complete.
        """
        if any(more.get(f"{kind}_data") for kind in ("image", "video", "audio")):
            raise ValueError(
                "rollout.name=transformers generates from text only; remove images, video and"
                " audio."
            )
        prompt = tuple(int(token) for token in prompt_ids)
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._admitting or (self._paused and self._rejecting)
            )
            if not self._admitting:
                fields = {"global_steps": self.global_steps}
                return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields=fields)
            if self._weights_problem:
                raise RuntimeError(f"The rollout server cannot generate: {self._weights_problem}.")
            seed = sampling_params.get("seed")
            if seed is None:
                seed = stable_seed(
                    self.config.seed, self.global_steps, prompt, self._prompt_counts[prompt]
                )
            request = build_request(prompt, sampling_params, self.config, self._max_model_len, seed)
            self._prompt_counts[prompt] += 1
            future: asyncio.Future[GenerationOutput] = asyncio.get_running_loop().create_future()
            self._futures[self._generator.submit(request)] = future
            # The request is answered with these weights, but newer ones may be there afterwards.
            version = self.global_steps
            if self._worker is None:
                self._worker = asyncio.create_task(self._decode_until_idle())
        output = await future
        return TokenOutput(
            token_ids=output.token_ids,
            log_probs=output.log_probs if sampling_params.get("logprobs", False) else None,
            stop_reason="aborted" if output.stop_reason == "aborted" else "completed",
            extra_fields={"global_steps": version},
        )

    @property
    def _admitting(self) -> bool:
        return not self._paused and self._loader is None

    async def _decode_until_idle(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        while True:
            while self._generator.has_work:
                await self._step()
            async with self._changed:
                self._changed.notify_all()
                if not self._generator.has_work:
                    # Under generate()'s lock, so that its next request starts another task.
                    self._worker = None
                    return

    async def _step(self) -> None:
        async with self._step_lock:
            try:
                self._resolve(await asyncio.to_thread(self._generator.step))
            except Exception as error:
                # The requests in the batch fail; the server stays usable.
                self._generator.abort()
                failed = self._futures
                self._futures = {}
                for future in failed.values():
                    if not future.done():
                        future.set_exception(RuntimeError(f"Generation failed: {error!r}"))

    def _resolve(self, outputs: Mapping[int, GenerationOutput]) -> None:
        for ticket, output in outputs.items():
            future = self._futures.pop(ticket)
            if not future.done():  # a canceled client does not wait any more
                future.set_result(output)

    async def wait_for_requests_to_drain(self) -> None:
        """Return when every request that was admitted has its answer."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._futures)

    async def begin_weight_update(self) -> None:
        """Hold new requests, let the others finish, and prepare for :meth:`receive_weights`."""
        self._loader = WeightLoader(self.model)
        await self.wait_for_requests_to_drain()
        self._weights_problem = "its weight update did not finish"

    async def receive_weights(self, bucket: bytes) -> None:
        """Copy a part of the weights into the model. ValueError: they do not match it."""
        assert self._loader is not None, "begin_weight_update comes first"
        self._loader.load(bucket)

    async def finish_weight_update(self, global_steps: int | None) -> None:
        """Check that all weights arrived, set their version, and admit requests again."""
        assert self._loader is not None, "begin_weight_update comes first"
        self._loader.finish()
        self._weights_problem = None
        self._prompt_counts.clear()
        await self.set_global_steps(global_steps)
        await self.abandon_weight_update()

    async def abandon_weight_update(self) -> None:
        """Admit requests again; after an unfinished update they fail with a message about it."""
        async with self._changed:
            self._loader = None
            self._changed.notify_all()

    async def set_global_steps(self, global_steps: int | None) -> None:
        """Set the weights' version; None, which verl passes around validation, changes nothing."""
        if global_steps is not None:
            self.global_steps = global_steps

    async def abort_all_requests(
        self, reset_prefix_cache: bool = True, reject_request: bool = False
    ) -> dict[str, int | list[str]]:
        """Answer all requests as they are; hold or reject new ones until generation resumes."""
        async with self._changed:
            self._paused = True
            self._rejecting = reject_request
            self._changed.notify_all()
        async with self._step_lock:
            aborted = self._generator.abort()
            self._resolve(aborted)
        await self.wait_for_requests_to_drain()
        return {"aborted_count": len(aborted), "request_ids": []}

    async def resume_generation(self) -> None:
        """Admit requests again after :meth:`abort_all_requests`."""
        async with self._changed:
            self._paused = self._rejecting = False
            self._changed.notify_all()

    async def do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing for memory and profiles: keys and values live as long as their request."""

    # As verl's vLLM replica does it.
    sleep = wait_for_requests_to_drain
    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = (
        do_nothing
    )
