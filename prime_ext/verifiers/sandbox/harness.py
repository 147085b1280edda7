# SPDX-License-Identifier: Apache-2.0
"""What a confined child runs: a program, one call of a function, a solution that serves its tests, or the tests.

The payload is read before anything of the program runs. Everything here except the tests' role shares its interpreter
with hostile code, so nothing that it reports is believed except as the program's own output.
"""

import atexit
import io
import json
import marshal
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

from prime_ext.verifiers.sandbox import prelude, remote, wire

_MESSAGE = 300


def read_payload() -> dict[str, Any]:
    size = os.fstat(wire.PAYLOAD).st_size
    payload = marshal.loads(os.pread(wire.PAYLOAD, size, 0))
    # Tells the client that the sandbox stands. The program cannot take it back: it does not get this descriptor.
    os.pwrite(wire.PAYLOAD, wire.STARTED, 0)
    os.close(wire.PAYLOAD)
    return payload


def renew_standard_streams() -> None:
    """Replace the streams that the server inherited by ones that know what they are connected to now."""
    for name, descriptor, mode in (
        ("stdin", wire.STDIN, "r"),
        ("stdout", wire.STDOUT, "w"),
        ("stderr", wire.STDERR, "w"),
    ):
        stream = _stream(descriptor, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(descriptor: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, mode, closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered,
        encoding="utf-8",
        errors="backslashreplace" if descriptor == wire.STDERR else "surrogateescape",
        line_buffering=descriptor == wire.STDERR,
    )


def _new_module(name: str, names: dict[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def _report(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(wire.RESULT, data) :]


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


def _guarded(action: Callable[[], None]) -> None:
    """Run the action as Python runs a script: threads are waited for, exit functions run, errors are printed."""
    code = 0
    try:
        action()
        _join_threads()
    except SystemExit as error:
        code = _exit_code(error)
    except MemoryError:
        os.write(wire.RESULT, b'{"raised": "MemoryError"}')
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
    program, code, keep_code = (payload[name] for name in ("program", "code", "keep_code"))
    del payload

    def action() -> None:
        compiled = marshal.loads(code) if code else compile(program, "program.py", "exec", dont_inherit=True)
        if keep_code:
            os.write(wire.RESULT, marshal.dumps(compiled))
        exec(compiled, _new_module("__main__", {}).__dict__)

    _guarded(action)


def _load(program: str, context: str = "") -> dict[str, Any]:
    module = _new_module("solution", prelude.NAMESPACE)
    exec(compile(context, "context.py", "exec", dont_inherit=True), module.__dict__)
    exec(compile(program, "solution.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def run_call(payload: dict[str, Any]) -> None:
    """Call one function of the program, or of its class ``Solution``, and report what it returned as JSON."""

    def action() -> None:
        namespace = _load(payload["program"])
        name = payload["function"]
        holder = namespace.get("Solution")
        if isinstance(holder, type) and hasattr(holder, name):
            function = getattr(holder(), name)
        elif name in namespace:
            function = namespace[name]
        else:
            raise NameError(f"the program defines no {name}")
        _report({"value": _to_json(function(*payload["arguments"]))})

    _guarded(action)


def _to_json(value: Any) -> Any:
    """Return the value as JSON data: tuples become lists, keys strings, numpy's scalars numbers."""
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is returned, which is not JSON")


def serve_solution(payload: dict[str, Any]) -> None:
    """Load the program and serve its functions to the tests in the other process."""
    channel = remote.Channel(wire.CHANNEL)

    def action() -> None:
        try:
            namespace = _load(payload["program"], payload["context"])
        except Exception as error:
            channel.send(remote.describe(error))
            raise
        remote.SolutionServer(channel, namespace).serve()
        # Whatever threads and exit functions the program left behind are of no interest.
        os._exit(0)

    _guarded(action)


def _failure(error: BaseException) -> tuple[str, str]:
    text = f"{type(error).__name__}: {error}"[:_MESSAGE]
    if isinstance(error, AssertionError):
        return "failed", str(error)[:_MESSAGE]
    kinds = {remote.SolutionTimeout: "timeout", remote.SolutionStopped: "stopped", MemoryError: "out_of_memory"}
    return kinds.get(type(error), "raised"), text


def run_tests(payload: dict[str, Any]) -> None:
    """Run the tests against a solution in another process and report the outcome of each.

    The report, one JSON object per line: ``broken`` if the tests' own set-up fails, ``not_plain`` if they pass what
    cannot cross, ``not_loaded`` if the solution fails on loading, else ``result``, an outcome and a text, for each test
    until one of them ended the run, and ``end``.
    """
    channel = remote.Channel(wire.CHANNEL)
    sys.setrecursionlimit(50_000)
    namespace = _new_module("tests", prelude.TEST_NAMESPACE).__dict__
    try:
        exec(compile(payload["setup"], "setup.py", "exec", dont_inherit=True), namespace)
        tests = [compile(test, "test.py", "exec", dont_inherit=True) for test in payload["tests"]]
    except BaseException as error:
        _report({"broken": f"{type(error).__name__}: {error}"[:_MESSAGE]})
        os._exit(0)
    client = remote.SolutionClient(channel)
    channel.deadline = time.monotonic() + payload["seconds"]
    try:
        client.wait_until_ready()
    except BaseException as error:
        outcome, text = _failure(error)
        _report({"not_loaded": ["raised" if outcome == "failed" else outcome, text]})
        os._exit(0)
    for name in payload["entry_points"]:
        namespace[name] = client.function(name)
    for test in tests:
        channel.deadline = time.monotonic() + payload["seconds"]
        outcome, text = "passed", ""
        try:
            exec(test, namespace)
        except remote.ArgumentNotPlain as error:
            _report({"not_plain": str(error)[:_MESSAGE]})
            os._exit(0)
        except BaseException as error:
            outcome, text = _failure(error)
        _report({"result": [outcome, text]})
        if outcome in ("timeout", "stopped") or (outcome != "passed" and payload["stop_at_first"]):
            break
    _report({"end": True})
    os._exit(0)


def run_together(payload: dict[str, Any]) -> None:
    """Run solution and tests in one interpreter: for tests whose arguments cannot cross, and weaker.

    The nonce in the report shows that the harness came to its end, so that leaving early does not pass. A program that
    walks the frames, leaves a thread behind or patches built-ins can still find or forge all of this.
    """

    def action() -> None:
        namespace = _load(payload["program"], payload["context"])
        tests = payload["tests"]
        results: list[tuple[str, str]] = []
        exec(compile(tests["setup"], "setup.py", "exec", dont_inherit=True), namespace)
        for test in tests["tests"]:
            try:
                exec(compile(test, "test.py", "exec", dont_inherit=True), namespace)
                results.append(("passed", ""))
            except BaseException as error:
                results.append(_failure(error))
                if tests["stop_at_first"]:
                    break
        _report({"results": results, "nonce": tests["nonce"]})
        os._exit(0)

    _guarded(action)


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "program": run_program,
    "call": run_call,
    "solution": serve_solution,
    "tests": run_tests,
    "together": run_together,
}
