# SPDX-License-Identifier: Apache-2.0
"""Calls, and tests beside their solution: what needs the solution's own interpreter, and is only as good as that.

This file's source goes to an interpreter that has none of this package. ``names`` is the namespace of the solution,
with the names of :mod:`prime_ext.verifiers.sandbox.prelude`.
"""

MESSAGE = 300


def run(code, name, names):
    exec(compile(code, name, "exec", dont_inherit=True), names)


def load(names, program, context=""):
    """Run a solution, after the trusted code that it builds on."""
    run(context, "context.py", names)
    run(program, "solution.py", names)


def call(names, program, function, arguments):
    """Call one function of the program, or of its class ``Solution``, and report what it returns as JSON."""
    load(names, program)
    holder = names.get("Solution")
    if isinstance(holder, type) and hasattr(holder, function):
        called = getattr(holder(), function)
    elif function in names:
        called = names[function]
    else:
        raise NameError(f"the program defines no {function}")
    return {"value": to_json(called(*arguments))}


def to_json(value):
    """Return the value as JSON data: tuples become lists, keys strings, numpy's scalars numbers."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is returned, which is not JSON")


def outcome_of(error):
    """How a test ended that raised, and a text."""
    text = f"{type(error).__name__}: {error}"[:MESSAGE]
    if isinstance(error, AssertionError):
        return "failed", str(error)[:MESSAGE]
    kinds = {"SolutionTimeout": "timeout", "SolutionStopped": "stopped", "MemoryError": "out_of_memory"}
    return kinds.get(type(error).__name__, "raised"), text


def together(names, program, context, setup, tests, stop_at_first, nonce):
    """Run tests beside the solution: for tests whose arguments cannot cross between processes, and weaker.

    The nonce in the report shows that the harness came to its end, so that leaving early does not pass. A program that
    walks the frames, leaves a thread behind or patches built-ins can still find or forge all of this.
    """
    load(names, program, context)
    run(setup, "setup.py", names)
    results = []
    for test in tests:
        try:
            run(test, "test.py", names)
            results.append(("passed", ""))
        except BaseException as error:
            results.append(outcome_of(error))
            if stop_at_first:
                break
    return {"results": results, "nonce": nonce}
