# SPDX-License-Identifier: Apache-2.0
"""Code that a confined child runs: a program, one call of a function, or a solution with its tests.

Everything here shares its interpreter with hostile code. The client therefore compares outputs and
returned values itself; docs/reference/verifiers.md lists what protects the report on tests and what
does not.
"""

import atexit
import builtins
import marshal
import os
import sys
import traceback
import types
from collections.abc import Callable

# By name: a program that patches json or os does not change what reports its tests.
from json import dumps
from os import write
from typing import Any

from prime_ext.verifiers.sandbox import prelude

# Functions below keep this copy: a program that patches built-ins does not change what they call.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

# The descriptors of a child, in the order in which they are sent and under the numbers that they
# get.
STDIN, STDOUT, STDERR, PAYLOAD, RESULT = DESCRIPTORS = range(5)
# Takes the place of the payload's first byte just before the program starts.
STARTED = b"S"
OUT_OF_MEMORY = b'{"raised": "MemoryError"}'

# Names of solutions.
NAMES = {name: value for name, value in vars(prelude).items() if not name.startswith("__")}
# Names of tests: what they call without importing it is the solution's, unless it is one of the
# node classes.
NODES: dict[str, type] = {"ListNode": prelude.ListNode, "TreeNode": prelude.TreeNode}
_TEST_NAMES = {
    name: value for name, value in NAMES.items() if isinstance(value, types.ModuleType)
} | NODES

_TEXT = 300
_SCALARS = frozenset((int, float, complex, bool, str, bytes, type(None)))
# With one of these, a returned object decides itself whether it passes a test.
_OPERATORS = frozenset(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ __add__ __radd__ __sub__ __rsub__"
    " __mul__ __rmul__ __truediv__ __rtruediv__ __mod__ __neg__ __abs__ __int__ __float__ __index__"
    " __round__".split()
)


def read_payload() -> dict[str, Any]:
    """Read the payload, report that the sandbox is on, and close the payload to the program."""
    size = os.fstat(PAYLOAD).st_size
    payload = marshal.loads(os.pread(PAYLOAD, size, 0))
    os.pwrite(PAYLOAD, STARTED, 0)
    os.close(PAYLOAD)
    return payload


def _make_module(name: str, names: dict[str, Any]) -> dict[str, Any]:
    module = types.ModuleType(name)
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__dict__.update(names)
    sys.modules[name] = module
    return module.__dict__


def _run(code: str, name: str, names: dict[str, Any]) -> None:
    exec(compile(code, name, "exec", dont_inherit=True), names)


def _report(message: dict[str, Any]) -> None:
    data = dumps(message).encode() + b"\n"
    while data:
        data = data[write(RESULT, data) :]


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
        while waiting := [
            t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon
        ]:
            waiting[0].join()


def _run_as_script(action: Callable[[], object]) -> None:
    """Run the action like a script: wait for threads, run exit functions, print errors."""
    code = 0
    # The limit of time bounds the conversion of long numbers.
    sys.set_int_max_str_digits(0)
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
    _run_as_script(lambda: _run(payload["program"], "program.py", _make_module("__main__", {})))


def run_call(payload: dict[str, Any]) -> None:
    _run_as_script(lambda: _report({"value": _call(**payload)}))


def _call(program: str, function: str, arguments: list[Any]) -> Any:
    """Call a function of the program or its class ``Solution``; return the result as JSON data."""
    names = _make_module("solution", NAMES)
    _run(program, "solution.py", names)
    holder = names.get("Solution")
    if isinstance(holder, type) and hasattr(holder, function):
        called = getattr(holder(), function)
    elif function in names:
        called = names[function]
    else:
        raise NameError(f"the program defines no {function}")
    return to_json(called(*arguments))


def to_json(value: Any) -> Any:
    """Return the value as JSON data: tuples become lists, keys strings, numpy's scalars numbers."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is returned, which is not JSON")


def run_tests(payload: dict[str, Any]) -> None:
    """Run a solution and its tests, and report ``{"nonce": ..., "outcome": ..., "text": ...}``.

    ``broken``, a text, replaces outcome and text if the set-up of the tests fails.
    """
    # An iterator over bytes shows its content neither in a dump of the frames nor to the garbage
    # collector.
    nonce = iter(payload.pop("nonce").encode())

    def action() -> None:
        message = _tests(payload)
        _report({**message, "nonce": bytes(nonce).decode()})
        os._exit(0)

    _run_as_script(action)


def _tests(payload: dict[str, Any]) -> dict[str, str]:
    names = _make_module("tests", {**_TEST_NAMES, "__builtins__": dict(vars(builtins))})
    try:
        _run(payload["setup"], "setup.py", names)
        tests = compile(payload["tests"], "test.py", "exec", dont_inherit=True)
    except BaseException as error:
        return {"broken": f"{type(error).__name__}: {error}"[:_TEXT]}
    # From here on the solution can neither look the tests up nor patch what they call.
    names.update(
        {
            name: _copy_module(value)
            for name, value in names.items()
            if isinstance(value, types.ModuleType)
        }
    )
    for name in [name for name in sys.modules if name == "tests" or name.startswith("prime_ext")]:
        del sys.modules[name]
    context, program, entry_points = (
        payload[name] for name in ("context", "program", "entry_points")
    )
    payload.clear()
    solution = _make_module("solution", NAMES)
    try:
        _run(context, "context.py", solution)
        _run(program, "solution.py", solution)
        names.update({name: _guard_entry_point(name, solution) for name in entry_points})
        exec(tests, names)
    except AssertionError as error:
        return {"outcome": "failed", "text": str(error)[:_TEXT]}
    except BaseException as error:
        outcome = "out_of_memory" if isinstance(error, MemoryError) else "raised"
        return {"outcome": outcome, "text": f"{type(error).__name__}: {error}"[:_TEXT]}
    return {"outcome": "passed", "text": ""}


def _copy_module(module: types.ModuleType) -> types.ModuleType:
    copy = types.ModuleType(module.__name__)
    copy.__dict__.update(vars(module))
    return copy


class _GuardedObject:
    """An instance of the program's class ``Solution`` whose methods return guarded results."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._value, name)
        return _guard_function(attribute) if callable(attribute) else attribute


def _guard_entry_point(name: str, solution: dict[str, Any]) -> Any:
    """Return what the tests call under this name; never a built-in that the solution leaves out."""
    called = solution.get(name)
    if called is None:

        def missing(*_: Any, **__: Any) -> Any:
            raise NameError(f"the solution defines no {name}")

        return missing
    if not isinstance(called, type):
        return _guard_function(called)
    if name != "Solution":
        return called
    return lambda *args, **keywords: _GuardedObject(called(*args, **keywords))


def _guard_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **keywords: Any) -> Any:
        try:
            value = function(*args, **keywords)
        except (StopIteration, StopAsyncIteration, GeneratorExit) as error:
            # It would end a map() or zip() of the tests early and quietly, and so pass them.
            raise RuntimeError(f"the solution raised {type(error).__name__}") from None
        _refuse_operators(value)
        return value

    return guarded


def _refuse_operators(value: Any) -> None:
    """Raise TypeError if the value is or contains an object with the program's own operators."""
    pending = [value]
    seen = set()
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind in _SCALARS or id(item) in seen:
            continue
        seen.add(id(item))
        for base in kind.__mro__:
            if base.__module__ == "solution" and not _OPERATORS.isdisjoint(vars(base)):
                raise TypeError(
                    f"the solution returned a {kind.__name__}, which has operators of its own"
                )
        if isinstance(item, dict):
            pending += [child for pair in item.items() for child in pair]
        elif isinstance(item, list | tuple | set | frozenset):
            pending += [child for child in item if type(child) not in _SCALARS]


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "program": run_program,
    "call": run_call,
    "tests": run_tests,
}
