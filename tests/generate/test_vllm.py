# SPDX-License-Identifier: Apache-2.0
"""vLLM as a backend: arguments that need no vLLM, and two copies of its CPU build."""

import multiprocessing
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
from tiny_llama import save_llama

from prime_ext.generate import vllm_backend
from prime_ext.generate.backend import BackendError, Request, Sampling
from prime_ext.generate.open import open_backend
from prime_ext.generate.vllm_backend import build_sampling_arguments


def test_seeds_have_63_bits_and_greedy_has_none():
    assert build_sampling_arguments(Sampling(temperature=0.5), 2**64 - 1)["seed"] == 2**63 - 1
    assert build_sampling_arguments(Sampling(), 7)["seed"] is None


SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"


@pytest.mark.parametrize(("given", "expected"), [(None, "0"), ("1", "1")])
def test_the_sampler_needs_no_compiler_unless_the_user_wants(
    tmp_path, monkeypatch, given, expected
):
    async def start_engine(arguments):
        return SimpleNamespace(environment=dict(os.environ), shutdown=lambda: None)

    installed = ModuleType("vllm")
    installed.__spec__ = ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", installed)
    monkeypatch.setattr(vllm_backend, "_engine", start_engine)
    os.environ.pop(SAMPLER, None)
    if given is not None:
        os.environ[SAMPLER] = given
    backend = open_backend("vllm", str(save_llama(tmp_path / "m")))
    backend._start()
    environment = backend._engine.environment
    backend.close()
    assert environment[SAMPLER] == expected
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM is not installed")
def test_vllm_reads_the_name_of_its_sampler(monkeypatch):
    from vllm import envs

    monkeypatch.delenv(SAMPLER, raising=False)
    assert envs.VLLM_USE_FLASHINFER_SAMPLER
    monkeypatch.setenv(SAMPLER, "0")
    assert not envs.VLLM_USE_FLASHINFER_SAMPLER


def get_texts(backend, requests):
    return {response.key: response.text for response in backend.generate(requests)}


@pytest.mark.vllm
def test_two_copies_agree_with_transformers_and_fail_without_hanging(tmp_path, monkeypatch):
    pytest.importorskip("vllm")
    for name in ("OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    path = str(save_llama(tmp_path / "m", size=64, max_positions=256))
    chats = [
        Request(f"c{n}", ({"role": "user", "content": f"{n}+{n}?"},), Sampling(max_new_tokens=12))
        for n in range(10)
    ]
    sampled = [
        Request(f"s{n}", "Once", Sampling(temperature=1.0, top_p=0.9, max_new_tokens=12), seed=n)
        for n in range(6)
    ]
    local = open_backend("transformers", path, device="cpu")
    backend = open_backend("vllm", path, data_parallel=2, batch_size=2)
    try:
        assert get_texts(backend, chats) == get_texts(local, chats)
        # A seed gives the same response, whatever shares the batch and whichever copy makes it.
        together = get_texts(backend, [*sampled, *chats])
        assert get_texts(backend, sampled[:3]) == {key: together[key] for key in ("s0", "s1", "s2")}
        assert len({together[request.key] for request in sampled}) > 1
        too_long = Request("long", "x" * 300, Sampling(max_new_tokens=4))
        with pytest.raises(BackendError, match="do not fit"):
            backend.check([too_long])
        (actual,) = backend.generate([chats[0]])
        (expected,) = local.generate([chats[0]])
        assert actual == expected and expected.prompt_tokens == len("[user] 0+0?\n[assistant] ")
        responses = []
        for response in backend.generate(chats * 4):
            if not responses:
                # vLLM goes on without its coordinator, which is a child, too.
                engines = [
                    child
                    for child in multiprocessing.active_children()
                    if "EngineCore" in child.name
                ]
                os.kill(engines[0].pid, signal.SIGKILL)
            responses.append(response)
        # The rest of the run fails at once, and says why; it does not hang.
        lost = [response for response in responses if response.finish == "failed"]
        assert (
            len(responses) == 40
            and lost
            and all(response.detail.startswith("vLLM") for response in lost)
        )
    finally:
        backend.close()
