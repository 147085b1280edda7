# SPDX-License-Identifier: Apache-2.0
"""The SandboxFusion backend against a service of a few lines that speaks its ``/run_code``."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.sandbox import Ending, Limits
from prime_ext.verifiers.sandbox.fusion import FusionSandbox


class Service(BaseHTTPRequestHandler):
    """Runs the programs of these tests, which are harmless, in a plain interpreter."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/run_code" and request["language"] == "python"
        if "service error" in request["code"]:
            self._answer({"status": "SandboxError", "message": "out of order"})
            return
        try:
            ended = subprocess.run(
                [sys.executable, "-c", request["code"]],
                input=request["stdin"] or "", capture_output=True, text=True, timeout=request["run_timeout"],
            )  # fmt: skip
            result = {"status": "Finished", "execution_time": 0.1, "return_code": ended.returncode}
            result |= {"stdout": ended.stdout, "stderr": ended.stderr}
        except subprocess.TimeoutExpired:
            result = {"status": "TimeLimitExceeded", "execution_time": request["run_timeout"]}
        self._answer({"status": "Success", "message": "", "run_result": result})

    def _answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def fusion():
    pytest.importorskip("sandbox_fusion", reason="the optional client: pip install sandbox-fusion")
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    yield FusionSandbox(f"http://127.0.0.1:{service.server_port}", Limits(seconds=5.0), attempts=1)
    service.shutdown()
    service.server_close()


@pytest.mark.parametrize(
    "program, ending",
    [
        ("print(int(input()) + 1)", Ending.FINISHED),
        ("1 / 0", Ending.FAILED),
        ("raise MemoryError", Ending.OUT_OF_MEMORY),
        ("while True: pass", Ending.TIMEOUT),
        ("print('x' * (5 << 20))", Ending.OUTPUT_LIMIT),
        ("'service error'", Ending.SANDBOX_FAILURE),
    ],
)
def test_endings_are_the_same_as_here(fusion, program, ending):
    execution = fusion.start({"program": {"program": program}}, b"1\n").result()
    assert execution.ending is ending
    if execution.finished:
        assert execution.stdout == b"2\n" and execution.seconds == 0.1


def test_the_verifier_works_with_it(fusion):
    verifier = CodeVerifier(fusion, limits=Limits(seconds=5.0))
    pairs = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
    calls = {"fn_name": "f", "inputs": ["[1]\n2"], "outputs": ["[1, 2]"]}
    suite = {"test_list": ["assert f([1], 2) == [1, 2]"]}
    function = "def f(a: List[int], b):\n    print('chatter')\n    return a + [b]"
    assert verifier.verify_program("print(sum(map(int, input().split())))", pairs).correct
    assert verifier.verify_program("print(3)", pairs, reward="fraction").score == 0.5
    assert verifier.verify_program(function, calls).correct
    verdict = verifier.verify_program(function, suite)
    assert verdict.correct and "in one process" in verdict.detail
    for program in ("def f(a, b): return 0", "import sys; sys.exit(0)", 'print(\'{"results": [["passed", ""]]}\')'):
        for cases in (calls, suite):
            assert verifier.verify_program(program, cases).score == 0.0
    assert verifier.verify_program("'service error'", pairs).grader_failure


def test_a_service_that_is_not_there_decides_nothing(fusion):
    nobody = FusionSandbox("http://127.0.0.1:9", attempts=1)
    assert nobody.start({"program": {"program": "print(1)"}}).result().sandbox_failure


def test_without_the_client_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sandbox_fusion", None)
    with pytest.raises(ImportError, match="pip install sandbox-fusion"):
        FusionSandbox("http://127.0.0.1:9")
