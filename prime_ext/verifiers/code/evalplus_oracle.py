# SPDX-License-Identifier: Apache-2.0
"""When an output agrees with the reference solution's, by EvalPlus' rules. Runs in the sandbox, beside the tests.

This file's source is sent there; it imports the standard library only. Facts about single problems (shapes of inputs
that JSON cannot hold, outputs that need not be equal) are those of EvalPlus 0.3.1.
"""

import copy
import math

# Relative tolerance wherever an absolute one applies, and the absolute one of floats without one of their own.
RELATIVE, OF_FLOATS = 1e-7, 1e-6

# The arguments of some MBPP problems are no lists but tuples, sets or complex numbers. A shape says it per argument,
# the last one for all further arguments: "t" a tuple of what is there, "l" that if it is a list, "d" tuples all the way
# down, "s" a set, "c" a complex number, "f" a float, "." as it is; "[x]" a list of x, "(x)" a tuple of x, "{x}" a dict
# whose values are x.
SHAPES = {
    "t": (
        2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809,
    ),
    "[t]": (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780),
    "[t] .": (75, 413, 444, 753),
    ". t": (106, 750),
    "[s]": (115,),
    "f c": (124,),
    "t .": (250, 307, 405, 446, 617, 720, 763, 808),
    "(t)": (259, 401, 445),
    "(l)": (278,),
    "{t} .": (722,),
    "c": (252,),
    "d": (580, 615, 791),
}  # fmt: skip
# Outputs that are compared as sets, and those of which only is asked whether there is one.
AS_SETS = (
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
)  # fmt: skip
WHETHER_ANY = ("check_str", "text_match_three", "text_starta_endb")


def make_check(task_id, prompt, canonical_solution, entry_point, inputs, atol):
    """The function ``check(candidate, index)`` that asserts agreement on one input.

    Args:
        task_id: ``HumanEval/0``, ``Mbpp/2`` and so on.
        prompt: what the reference solution completes.
        canonical_solution: the reference solution.
        entry_point: name of the function.
        inputs: arguments by input, as JSON has them.
        atol: absolute tolerance of numbers.
    """
    shape = shape_of(task_id)
    inputs = [shaped(arguments, shape) for arguments in inputs]
    module = {}
    exec(prompt + canonical_solution, module)
    # Before any test, so that a reference solution that fails is no fault of the candidate.
    expected = [module[entry_point](*copy.deepcopy(arguments)) for arguments in inputs]
    is_mbpp = task_id.startswith("Mbpp/")

    def check(candidate, index):
        arguments = inputs[index]
        output = candidate(*copy.deepcopy(arguments))
        agreed = agree(is_mbpp, entry_point, arguments, output, expected[index], atol)
        assert agreed, f"{entry_point} gives {repr(output)[:80]}, not {repr(expected[index])[:80]}"

    return check


def agree(is_mbpp, entry_point, arguments, output, expected, atol):
    """Whether an output is right.

    Equal, or where numbers are floats or the problem has a tolerance: of the same type and length, and every number
    within it. A few problems have rules of their own.
    """
    if not is_mbpp and entry_point == "find_zero":
        (coefficients,) = arguments
        return abs(sum(factor * math.pow(output, power) for power, factor in enumerate(coefficients))) <= atol
    equal = output == expected
    if is_mbpp:
        if entry_point in AS_SETS:
            equal = set(output) == set(expected)
        elif entry_point in WHETHER_ANY:
            # Match objects and booleans have both been accepted as "found".
            found = output if isinstance(output, bool) else output is not None
            equal = found == (expected is not None)
        else:
            equal = equal or _mbpp_exception(entry_point, arguments, output, atol)
    if atol == 0 and is_floats(expected):
        atol = OF_FLOATS
    if equal or atol == 0:
        return equal
    if type(output) is not type(expected):
        return False
    return close(output, expected, atol)


def _mbpp_exception(entry_point, arguments, output, atol):
    """Problems whose reference solution is one of several readings of the question."""
    if entry_point == "are_equivalent":
        return True
    if entry_point == "sum_div":
        return output == 0
    if entry_point == "surface_Area":
        # The height is that of the pyramid, not of its sides.
        edge, height = arguments
        side = math.sqrt((edge / 2) ** 2 + height**2)
        return abs(output - round(edge**2 + 2 * edge * side)) <= atol
    if entry_point == "digit_distance_nums":
        # Digit by digit, the shorter number filled with zeros.
        texts = [str(number) for number in arguments]
        length = max(map(len, texts))
        pairs = zip(*(text.zfill(length) for text in texts), strict=True)
        return output == sum(abs(int(one) - int(other)) for one, other in pairs)
    return False


def is_floats(value):
    """Whether it is a float, or a list or tuple of nothing else."""
    if isinstance(value, (list, tuple)) and value:
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def close(output, expected, atol):
    """Whether every number is within the tolerance; anything that is no number, list or tuple is not."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(output, (list, tuple)) or len(output) != len(expected):
            return False
        return all(close(one, other, atol) for one, other in zip(output, expected, strict=True))
    if not isinstance(expected, (int, float, complex)) or not isinstance(output, (int, float, complex)):
        return False
    return output == expected or abs(output - expected) <= atol + RELATIVE * abs(expected)


def shape_of(task_id):
    """The shape of a problem's arguments; empty if JSON says it all."""
    source, _, number = task_id.partition("/")
    if source != "Mbpp":
        return ""
    return next((shape for shape, numbers in SHAPES.items() if int(number) in numbers), "")


def shaped(arguments, shape):
    """Arguments from JSON in the types that the problem has."""
    parts = shape.split()
    if not parts:
        return arguments
    return [_shaped(value, parts[min(index, len(parts) - 1)]) for index, value in enumerate(arguments)]


def _shaped(value, shape):
    kind, inner = shape[0], shape[1:-1]
    if kind == "[":
        return [_shaped(item, inner) for item in value]
    if kind == "(":
        return tuple(_shaped(item, inner) for item in value)
    if kind == "{":
        return {key: _shaped(item, inner) for key, item in value.items()}
    if kind == "t":
        return tuple(value)
    if kind == "l":
        return tuple(value) if isinstance(value, list) else value
    if kind == "s":
        # An empty set has become an empty dict in EvalPlus' data.
        return set(value) if isinstance(value, list) and value else {}
    if kind == "d":
        return tuple(_shaped(item, "d") for item in value) if isinstance(value, list) else value
    return {"c": complex, "f": float}[kind](value) if kind in "cf" else value
