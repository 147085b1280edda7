# SPDX-License-Identifier: Apache-2.0
"""What a confined child runs: a program, one call of a function, a solution that serves its tests, or the tests.

The payload is read before anything of the program runs. Everything here except the tests' role shares its interpreter
with hostile code, so nothing that it reports is believed except as the program's own output.
"""

import atexit
import json
import marshal
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

from prime_ext.verifiers.sandbox import prelude, remote, together

# The descriptors of a process, in the order in which they are sent and under the numbers that they get. The last one is
# the stream between solution and tests, in both processes of a suite.
STDIN, STDOUT, STDERR, PAYLOAD, RESULT, CHANNEL = range(6)
# Takes the place of the payload's first byte just before the program starts.
STARTED = b"S"
OUT_OF_MEMORY = b'{"raised": "MemoryError"}'

# For solutions.
NAMES = {name: value for name, value in vars(prelude).items() if not name.startswith("__")}
# For tests: what they call without importing it is the solution's, unless it is one of the node classes. Modules cannot
# be called, so that a solution may bear the name of one.
NODES: dict[str, type] = {"ListNode": prelude.ListNode, "TreeNode": prelude.TreeNode}
_TEST_NAMES = {name: value for name, value in NAMES.items() if isinstance(value, types.ModuleType)} | NODES


def read_payload() -> dict[str, Any]:
    size = os.fstat(PAYLOAD).st_size
    payload = marshal.loads(os.pread(PAYLOAD, size, 0))
    # Tells the client that the sandbox stands. The program cannot take it back: it does not get this descriptor.
    os.pwrite(PAYLOAD, STARTED, 0)
    os.close(PAYLOAD)
    return payload


def _new_module(name: str, names: dict[str, Any]) -> dict[str, Any]:
    module = types.ModuleType(name)
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__dict__.update(names)
    sys.modules[name] = module
    return module.__dict__


def _report(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(RESULT, data) :]


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # The program closed it or hit the output limit. Python itself would exit with 120.
            code = code or 120
    os._exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _join_threads() -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        while waiting := [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]:
            waiting[0].join()


def _guarded(action: Callable[[], object]) -> None:
    """Run the action as Python runs a script: threads are waited for, exit functions run, errors are printed."""
    code = 0
    try:
        action()
        _join_threads()
    except SystemExit as error:
        code = _exit_code(error)
    except MemoryError:
        os.write(RESULT, OUT_OF_MEMORY)
        os._exit(1)
    except BaseException:
        code = 1
        traceback.print_exc(limit=-5)
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc(limit=-5)
    _leave(code)


def run_program(payload: dict[str, Any]) -> None:
    """Run the program as a script on its standard input."""
    _guarded(lambda: together.run(payload["program"], "program.py", _new_module("__main__", {})))


def run_call(payload: dict[str, Any]) -> None:
    """Call one function of the program and report what it returned."""
    _guarded(lambda: _report(together.call(_new_module("solution", NAMES), **payload)))


def run_together(payload: dict[str, Any]) -> None:
    """Run solution and tests in one interpreter."""

    def action() -> None:
        _report(together.together(_new_module("solution", NAMES), **payload))
        os._exit(0)

    _guarded(action)


def serve_solution(payload: dict[str, Any]) -> None:
    """Load the program and serve its functions to the tests in the other process."""
    channel = remote.Channel(CHANNEL)

    def action() -> None:
        names = _new_module("solution", NAMES)
        try:
            together.load(names, **payload)
        except Exception as error:
            channel.send(remote.describe(error))
            raise
        remote.serve(channel, names)
        # Whatever threads and exit functions the program left behind are of no interest.
        os._exit(0)

    _guarded(action)


def run_tests(payload: dict[str, Any]) -> None:
    """Run the tests against a solution in another process and report the outcome of each.

    The report, one JSON object per line: ``broken`` if the tests' own set-up fails, ``not_plain`` if they pass what
    cannot cross, ``not_loaded`` if the solution fails on loading, else ``result``, an outcome and a text, for each test
    until one of them ended the run, and ``end``.
    """
    for line in _tests(payload, remote.Channel(CHANNEL)):
        _report(line)
    os._exit(0)


def _tests(payload: dict[str, Any], channel: remote.Channel) -> Any:
    sys.setrecursionlimit(50_000)
    names = _new_module("tests", _TEST_NAMES)
    try:
        together.run(payload["setup"], "setup.py", names)
        tests = [compile(test, "test.py", "exec", dont_inherit=True) for test in payload["tests"]]
    except BaseException as error:
        yield {"broken": f"{type(error).__name__}: {error}"[: together.MESSAGE]}
        return
    channel.deadline = time.monotonic() + payload["seconds"]
    client = remote.SolutionClient(channel)
    try:
        client.wait_until_ready()
    except BaseException as error:
        outcome, text = together.outcome_of(error)
        yield {"not_loaded": ["raised" if outcome == "failed" else outcome, text]}
        return
    names.update({name: client.function(name) for name in payload["entry_points"]})
    for test in tests:
        channel.deadline = time.monotonic() + payload["seconds"]
        outcome, text = "passed", ""
        try:
            exec(test, names)
        except remote.ArgumentNotPlain as error:
            yield {"not_plain": str(error)[: together.MESSAGE]}
            return
        except BaseException as error:
            outcome, text = together.outcome_of(error)
        yield {"result": [outcome, text]}
        if outcome in ("timeout", "stopped") or (outcome != "passed" and payload["stop_at_first"]):
            break
    yield {"end": True}


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "program": run_program,
    "call": run_call,
    "solution": serve_solution,
    "tests": run_tests,
    "together": run_together,
}
