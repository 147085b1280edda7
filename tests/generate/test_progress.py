# SPDX-License-Identifier: Apache-2.0
"""The bar over a backend's responses."""

import io

from scripted_server import Answer, ScriptedServer

from prime_ext.generate.backend import Request, Sampling
from prime_ext.generate.open import open_backend
from prime_ext.generate.progress import generate_with_progress


def test_the_bar_shows_responses_of_all_runs_speed_and_failures():
    stream = io.StringIO()
    requests = [Request(str(number), f"q{number}", Sampling()) for number in range(6)]
    with ScriptedServer(lambda *_: Answer("x", tokens=100), faults_of={"q3": [400]}, seconds=0.01) as server:
        backend = open_backend("server", "scripted", base_url=server.base_url)
        found = list(generate_with_progress(backend, requests, "math500", done=4, stream=stream))
    last = stream.getvalue().replace("\n", "\r").strip("\r").split("\r")[-1]
    assert len(found) == 6
    assert last.startswith("math500: 100%") and "10/10" in last and "tokens/s, 1 failed" in last
