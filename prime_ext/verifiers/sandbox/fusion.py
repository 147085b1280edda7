# SPDX-License-Identifier: Apache-2.0
"""Programs run by a SandboxFusion service instead of this machine.

The same runs as :class:`~prime_ext.verifiers.sandbox.client.Sandbox`, with these differences: the
service's own isolation and memory limit hold, output is text, and a run is one process, so that tests which are code
run beside the solution ("in one process", see :mod:`prime_ext.verifiers.code.verifier`).
"""

import json
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import getsource
from typing import Any

from prime_ext.verifiers.sandbox import prelude, together
from prime_ext.verifiers.sandbox.runs import Ending, Execution, Limits, Roles, failure

_STDERR_TAIL = 4096
_MOST_AT_A_TIME = 16
_SCRIPT = """
import json
names, harness, told = {{"__name__": "solution"}}, {{}}, json.loads({told!r})
exec(told["prelude"], names)
exec(told["together"], harness)
print({mark!r} + json.dumps(harness[{role!r}](names, **told["payload"])))
"""


def _client() -> Any:
    try:
        import sandbox_fusion
    except ImportError as error:
        raise ImportError("the SandboxFusion backend needs its client: pip install sandbox-fusion") from error
    return sandbox_fusion


class FusionSandbox:
    """Runs programs on a SandboxFusion service.

    Args:
        endpoint: URL of the service.
        limits: limits of a run unless it brings its own; the service takes note of ``seconds`` and nothing else.
        attempts: how often a request is tried before it counts as a failure of the sandbox.

    Raises:
        ImportError: the package sandbox-fusion is not installed.
    """

    def __init__(self, endpoint: str, limits: Limits | None = None, attempts: int = 3) -> None:
        self._fusion = _client()
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self._attempts = attempts
        self._executor = ThreadPoolExecutor(_MOST_AT_A_TIME, thread_name_prefix="prime_ext-fusion")

    def start(self, roles: Roles, stdin: bytes = b"", limits: Limits | None = None) -> "Future[Execution]":
        """Queue a run and return its future, which never raises for what a program or the service does."""
        if "tests" in roles:
            # Asks the verifier for the form that one process can run.
            refusal: Future[Execution] = Future()
            report = {"not_plain": "SandboxFusion runs one process"}
            refusal.set_result(Execution(Ending.FINISHED, exit_code=0, result=json.dumps(report).encode() + b"\n"))
            return refusal
        return self._executor.submit(self._run, roles, stdin.decode("utf-8", "replace"), limits or self.limits)

    def _run(self, roles: Roles, stdin: str, limits: Limits) -> Execution:
        mark = secrets.token_hex(16)
        ((role, payload),) = roles.items()
        told = {"prelude": getsource(prelude), "together": getsource(together), "payload": payload}
        script = _SCRIPT.format(told=json.dumps(told), mark=mark, role=role)
        code = payload["program"] if role == "program" else script
        sent = self._fusion.RunCodeRequest(code=code, stdin=stdin, language="python", run_timeout=limits.seconds)
        try:
            answer = self._fusion.run_code(
                sent, endpoint=self.endpoint, max_attempts=self._attempts, client_timeout=limits.seconds + 30
            )
        except Exception as error:
            # The client raises plain Exceptions for whatever the network and the service do.
            return failure(f"SandboxFusion: {error}")
        if answer.run_result is None:
            return failure(f"SandboxFusion sent no result: {answer.message}")
        return _execution(answer.run_result, mark, limits)


def _execution(answer: Any, mark: str, limits: Limits) -> Execution:
    stdout, stderr = answer.stdout or "", answer.stderr or ""
    before, found, result = stdout.rpartition(mark)
    output = (before if found else stdout).encode("utf-8", "surrogatepass")
    if answer.status == "TimeLimitExceeded":
        ending = Ending.TIMEOUT
    elif len(output) >= limits.output_bytes:
        ending = Ending.OUTPUT_LIMIT
    elif answer.return_code == 0:
        ending = Ending.FINISHED
    elif stderr.rstrip().rpartition("\n")[2].startswith("MemoryError"):
        ending = Ending.OUT_OF_MEMORY
    else:
        ending = Ending.FAILED
    return Execution(
        ending=ending,
        stdout=output[: limits.output_bytes],
        stderr=stderr[-_STDERR_TAIL:],
        exit_code=answer.return_code,
        seconds=answer.execution_time or 0.0,
        result=result.partition("\n")[0].encode("utf-8", "surrogatepass") if found else b"",
    )
