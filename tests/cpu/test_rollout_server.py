# SPDX-License-Identifier: Apache-2.0
"""The rollout server without Ray: requests, weight updates, pause and resume, failures."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from prime_ext.generate.generation import stable_seed
from prime_ext.verl_adapter.cpu.rollout_server import TransformersServer, build_request
from prime_ext.verl_adapter.cpu.seeded_loop import sample_seed
from prime_ext.verl_adapter.cpu.weights import WeightLoader, pack_in_buckets
from recipes.tiny_model import write_model

PROMPT = [5, 6, 7, 8]
SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "repetition_penalty": 1.0,
    "logprobs": True,
}


def rollout_config(**options) -> RolloutConfig:
    lengths = {"prompt_length": 16, "response_length": 24, "tensor_model_parallel_size": 1}
    kind = {"name": "transformers", "dtype": "float32", "load_format": "auto", "seed": 3}
    return RolloutConfig(**{**kind, **lengths, **options})


@pytest.fixture
def make_server(model_path):
    model_config = HFModelConfig(
        path=str(model_path), override_config={"attn_implementation": "sdpa"}
    )
    return lambda **options: TransformersServer(rollout_config(**options), model_config)


async def update(server, model, global_steps=1, bucket_bytes=1 << 12):
    await server.begin_weight_update()
    async for bucket in pack_in_buckets(model.named_parameters(), bucket_bytes):
        await server.receive_weights(bucket)
    await server.finish_weight_update(global_steps)


async def generating(server):
    """Return when a few tokens of the requests in flight are there, however long that takes."""
    forward = server.model.forward
    calls = []
    server.model.forward = lambda *arguments, **options: (
        calls.append(1),
        forward(*arguments, **options),
    )[1]
    while len(calls) < 4:
        await asyncio.sleep(0)
    server.model.forward = forward


def assert_log_probs_of(model, output):
    logits = model(torch.tensor([[*PROMPT, *output.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(output.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(output.log_probs), expected, atol=1e-5, rtol=0)


@pytest.mark.anyio
async def test_samples_of_a_prompt_change_only_with_the_weight_version(make_server, model):
    async def samples(n=6, other_prompts=()):
        prompts = [*([PROMPT] * n), *other_prompts]
        outputs = await asyncio.gather(
            *[server.generate(p, SAMPLING, str(i)) for i, p in enumerate(prompts)]
        )
        return sorted(tuple(output.token_ids) for output in outputs[:n])

    server = make_server()
    await server.set_global_steps(1)
    first = await samples()
    await update(server, model, global_steps=2)  # the same weights as another version
    assert await samples() != first and len(set(first)) > 1
    await update(server, model, global_steps=1)
    assert await samples(other_prompts=[[9, 9], [4]]) == first


@pytest.mark.anyio
async def test_requests_in_flight_finish_with_the_old_weights(make_server, model, other_model):
    server = make_server(ignore_eos=True)
    await server.set_global_steps(4)
    early = [asyncio.create_task(server.generate(PROMPT, SAMPLING, str(i))) for i in range(8)]
    await generating(server)
    await server.begin_weight_update()
    assert all(task.done() for task in early)
    late = asyncio.create_task(server.generate(PROMPT, SAMPLING, "late"))
    async for bucket in pack_in_buckets(other_model.named_parameters(), 1 << 20):
        await server.receive_weights(bucket)
    assert not late.done()
    await server.finish_weight_update(5)
    for output in [task.result() for task in early]:
        assert_log_probs_of(model, output)
        assert output.extra_fields["global_steps"] == 4
    assert_log_probs_of(other_model, await late)
    assert late.result().extra_fields["global_steps"] == 5


@pytest.mark.anyio
async def test_pause_returns_partial_responses_and_holds_new_requests(make_server):
    server = make_server(ignore_eos=True, response_length=100)
    tasks = [asyncio.create_task(server.generate(PROMPT, SAMPLING, str(i))) for i in range(4)]
    await generating(server)
    assert (await server.abort_all_requests())["aborted_count"] == 4
    partial = [await task for task in tasks]
    assert all(
        output.stop_reason == "aborted" and len(output.token_ids) < 100 for output in partial
    )
    held = asyncio.create_task(server.generate(PROMPT, SAMPLING, "held"))
    await asyncio.sleep(0.05)
    assert not held.done()
    await server.resume_generation()
    completed = await asyncio.wait_for(held, 600)
    assert completed.stop_reason == "completed" and len(completed.token_ids) == 100
    await server.abort_all_requests(reject_request=True)
    rejected = await asyncio.wait_for(server.generate(PROMPT, SAMPLING, "rejected"), 600)
    assert rejected.stop_reason == "aborted" and rejected.token_ids == []


class _Client(FullyAsyncLLMServerClient):
    """verl's client of the asynchronous modes, with a server in this process, not a Ray actor."""

    def __init__(self, server):
        config = OmegaConf.create(
            {"actor_rollout_ref": {"rollout": {"name": "transformers", "response_length": 100}}}
        )
        super().__init__(config)
        self._only = SimpleNamespace(generate=SimpleNamespace(remote=server.generate))

    async def _acquire_server(self, request_id, **extra):
        return "only", self._only

    def _release_server(self, server_id, request_id=None):
        pass


@pytest.mark.anyio
async def test_an_interrupted_rollout_goes_on_where_it_was(make_server, model, other_model):
    async def run(interrupt_with=None):
        server = make_server(ignore_eos=True, dtype="float64", response_length=100, max_num_seqs=8)
        await update(server, model, global_steps=1)
        client = _Client(server)
        samplings = {str(seed): {**SAMPLING, "seed": seed} for seed in range(3)}
        asked = [
            client.generate(key, prompt_ids=PROMPT, sampling_params=each)
            for key, each in samplings.items()
        ]
        tasks = [asyncio.create_task(each) for each in asked]
        if interrupt_with is not None:
            await generating(server)
            await server.abort_all_requests()
            await update(server, interrupt_with, global_steps=2)
            await server.resume_generation()
        return [await asyncio.wait_for(task, 600) for task in tasks]

    whole, same, other = [await run(weights) for weights in (None, model, other_model)]
    for expected, resumed, changed in zip(whole, same, other, strict=True):
        assert resumed.token_ids == expected.token_ids and len(resumed.token_ids) == 100
        assert resumed.log_probs == pytest.approx(expected.log_probs, abs=1e-9)
        assert [expected.extra_fields[f"{end}_global_steps"] for end in ("min", "max")] == [1, 1]
        assert [resumed.extra_fields[f"{end}_global_steps"] for end in ("min", "max")] == [1, 2]
        assert len(changed.token_ids) == 100 and changed.token_ids != expected.token_ids


@pytest.mark.anyio
async def test_a_failing_generation_leaves_the_server_usable(make_server):
    server = make_server()
    forward = server.model.forward
    server.model.forward = lambda **_: 1 / 0
    asked = [server.generate(PROMPT, SAMPLING, str(i)) for i in range(3)]
    results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 600)
    assert all(
        isinstance(result, RuntimeError) and "ZeroDivisionError" in str(result)
        for result in results
    )
    server.model.forward = forward
    output = await asyncio.wait_for(server.generate(PROMPT, SAMPLING, "ok"), 600)
    assert output.stop_reason == "completed"


@pytest.mark.anyio
async def test_generation_fails_without_weights_and_after_a_broken_update(make_server, model):
    server = make_server(load_format="dummy")
    with pytest.raises(RuntimeError, match="received no weights"):
        await server.generate(PROMPT, SAMPLING, "a")
    await server.begin_weight_update()
    await server.receive_weights(save({"model.norm.weight": model.model.norm.weight}))
    with pytest.raises(ValueError, match="were not sent"):
        await server.finish_weight_update(1)
    await server.abandon_weight_update()
    with pytest.raises(RuntimeError, match="did not finish"):
        await asyncio.wait_for(server.generate(PROMPT, SAMPLING, "b"), 600)
    await update(server, model)
    assert_log_probs_of(model, await server.generate(PROMPT, SAMPLING, "c"))


@pytest.mark.anyio
async def test_tied_weights_may_arrive_under_any_of_their_names(model_path, other_model):
    async def load(weights):
        receiver = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        loader = WeightLoader(receiver)
        async for bucket in pack_in_buckets(weights, 1 << 12):
            loader.load(bucket)
        loader.finish()
        return receiver

    embedding = other_model.model.embed_tokens.weight
    others = [
        (name, value) for name, value in other_model.named_parameters() if value is not embedding
    ]
    for aliases in (
        ["lm_head.weight"],
        ["model.embed_tokens.weight"],
        ["lm_head.weight", "model.embed_tokens.weight"],
    ):
        receiver = await load([*((alias, embedding) for alias in aliases), *others])
        assert torch.equal(
            receiver(torch.tensor([PROMPT])).logits, other_model(torch.tensor([PROMPT])).logits
        )
    for weights, message in (
        ([("nothing", torch.zeros(2))], "not in the rollout model"),
        ([("model.norm.weight", torch.zeros(2))], r"model.norm.weight' has the shape \(2,\)"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            await load(weights)


@pytest.mark.anyio
async def test_experts_arrive_one_by_one(tmp_path):
    for seed in (0, 1):
        write_model(tmp_path / str(seed), "qwen3_moe", seed)
    receiver, sender = (
        AutoModelForCausalLM.from_pretrained(tmp_path / str(seed), dtype=torch.float32)
        for seed in (0, 1)
    )
    sent = dict(unfuse_moe_params(sender.state_dict().items()))
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in sent
    loader = WeightLoader(receiver)
    async for bucket in pack_in_buckets(sent.items(), 1 << 14):
        loader.load(bucket)
    loader.finish()
    inputs = torch.tensor([PROMPT])
    assert torch.equal(receiver(inputs).logits, sender(inputs).logits)
    del sent["model.layers.1.mlp.experts.3.up_proj.weight"]
    loader = WeightLoader(receiver)
    async for bucket in pack_in_buckets(sent.items(), 1 << 14):
        loader.load(bucket)
    with pytest.raises(ValueError, match=r"1 weights .*1.mlp.experts.3.up_proj"):
        loader.finish()


def test_lengths_are_limited_and_unsupported_parameters_refused():
    config = rollout_config(prompt_length=16, response_length=24)

    def limit(n_prompt, max_model_len=128, **sampling):
        options = {"config": config, "max_model_len": max_model_len, "seed": 0}
        return build_request([1] * n_prompt, sampling, **options).max_new_tokens

    assert limit(4) == 24  # the response length ...
    assert limit(20) == 20  # ... within prompt length + response length
    assert limit(4, max_tokens=7) == limit(4, max_new_tokens=7) == 7
    assert limit(4, max_model_len=10) == 6
    with pytest.raises(ValueError, match="leaves no room"):
        limit(10, max_model_len=10)
    for option in ({"stop": ["\n"]}, {"repetition_penalty": 1.2}, {"n": 2}, {"guided_json": "{}"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}=.* is not supported"):
            limit(4, **option)
    assert limit(4, **SAMPLING) == 24


def test_every_sample_of_a_step_has_its_own_reproducible_seed():
    sample = {
        "global_steps": 3,
        "index": 7,
        "session_id": 0,
        "raw_prompt": [{"role": "user", "content": "1+2"}],
    }
    changes = [
        {},
        {"global_steps": 4},
        {"index": 8},
        {"session_id": 1},
        {"raw_prompt": [{"role": "u", "content": ""}]},
    ]
    seeds = [sample_seed(5, sample | change) for change in changes] + [sample_seed(6, sample)]
    assert len(set(seeds)) == len(seeds)
    assert (
        sample_seed(5, sample | {"uid": "random"}) == seeds[0]
    )  # nothing that another run would name otherwise
    # The same everywhere.
    assert stable_seed(1, "a", [2]) == 1855870061761875673
