# SPDX-License-Identifier: Apache-2.0
"""Limits on normalized text that would hang or overfill computer algebra, or is not mathematics.

The checks take linear time. A response beyond the limits is wrong unless it equals the gold answer
as text; for such a gold answer the grader fails.
"""

import re

MAX_CHARACTERS = 600
MAX_NESTING = 9
MAX_DIGITS_IN_A_ROW = 60
MAX_EXPONENT = 5_000  # of a number or, in a power of a power, the product
MAX_FACTORIAL = 200
MAX_BINOMIAL = 2_000
MAX_CELLS = 36
MAX_MEMBERS = 24
MAX_COUNT = {
    "\\log": 4,
    "\\ln": 4,
    "\\sqrt": 8,
    "\\frac": 16,
    "\\sum": 1,
    "\\prod": 1,
    "\\int": 1,
    "\\lim": 1,
}
MAX_COUNT |= {"!": 4, "^": 24, "|": 12, "\\begin": 1, "\\binom": 4}

_TEXT = re.compile(r"\\text\{[^{}]*\}")
_INNERMOST = re.compile(r"\{[^(){}\[\]]*\}|[(\[][^(){}\[\]]*[)\]]")
_DIGITS = re.compile(rf"\d{{{MAX_DIGITS_IN_A_ROW + 1}}}")
_NUMBER = re.compile(r"\d+(?:\.\d*)?")
_WORD = re.compile(r"(?s)[\w.]+|.")


def refusal(text: str) -> str | None:
    """Return why ``text`` (a normalized answer) must not reach computer algebra, None if it may."""
    if len(text) > MAX_CHARACTERS:
        return f"more than {MAX_CHARACTERS} characters"
    bare = _TEXT.sub(" ", text).replace("\\\\", "&")
    if not bare.isascii():
        return "characters beyond ASCII"
    if "__" in bare:
        return "no mathematics: __"
    if (reason := _check_nesting(bare)) is not None:
        return reason
    if _DIGITS.search(bare):
        return f"more than {MAX_DIGITS_IN_A_ROW} digits in a row"
    if re.search(r"\d[eE][+-]?\d{3}", bare):
        return "an exponent of ten beyond 99"
    if re.search(r"\d \d", bare):
        return "numbers side by side"
    for token, limit in MAX_COUNT.items():
        if bare.count(token) > limit:
            return f"more than {limit} times {token}"
    if bare.count(",") + bare.count(";") >= MAX_MEMBERS or bare.count("\\cup") >= MAX_MEMBERS:
        return f"more than {MAX_MEMBERS} members"
    if bare.count("&") >= MAX_CELLS:
        return f"a matrix of more than {MAX_CELLS} cells"
    return _find_too_large(bare)


def _check_nesting(text: str) -> str | None:
    """Return what is wrong with brackets, of which round and square ones may be mixed."""
    text = re.sub(r"(?s)\\.", "", text)
    for _ in range(MAX_NESTING + 1):
        reduced = _INNERMOST.sub("", text)
        if reduced == text:
            return "brackets do not match" if re.search(r"[(){}\[\]]", text) else None
        text = reduced
    return f"brackets nested deeper than {MAX_NESTING}"


def _group(text: str, opening: str = "([{", closing: str = ")]}") -> str:
    """Return the bracketed group, number, letters or character at the start of a text."""
    depth = 0
    for length, character in enumerate(text, 1):
        depth += (character in opening) - (character in closing)
        if depth <= 0:
            return text[:length] if length > 1 else _WORD.findall(text)[0]
    return text


def _find_too_large(text: str) -> str | None:
    """Name a power, factorial, binomial or sum that explodes; nested powers multiply exponents."""
    exponents: dict[int, float] = {}
    for match in re.finditer(r"[\^!]", text):
        index = match.start()
        operand = _group(text[:index][::-1], ")]}", "([{")[::-1]
        if match.group() == "!":
            if "!" in operand or text[index + 1 : index + 2] == "!":
                return "nested factorials"
            if "^" in operand or _find_largest(operand) > MAX_FACTORIAL:
                return f"a factorial beyond {MAX_FACTORIAL}!"
            continue
        exponent = _group(text[index + 1 :])
        own = _find_largest(exponent)
        if own and re.search(r"\^|!|\\binom", exponent):
            # A power in the exponent: a tower, unless all of it is small, as in e^{x^2} or 2^{2^3}.
            if len(_NUMBER.findall(exponent)) > 2 or own > 10:
                return "a tower of powers"
            own = own**own
        inner = [value for place, value in exponents.items() if place >= index - len(operand)]
        exponents[index] = max(own, 1.0) * max(inner, default=1.0)
        if exponents[index] > MAX_EXPONENT:
            return f"an exponent beyond {MAX_EXPONENT}"
    for command in re.finditer(r"\\binom", text):
        first = _group(text[command.end() :])
        both = first + _group(text[command.end() + len(first) :])
        if re.search(r"\\binom|!|\^", both):
            return "a binomial coefficient of powers, factorials or binomial coefficients"
        if _find_largest(both) > MAX_BINOMIAL:
            return f"a binomial coefficient beyond {MAX_BINOMIAL}"
    if re.search(r"\\(?:sum|prod|int)(?![a-zA-Z])", text) and _find_largest(text) > 100:
        return "a sum, product or integral with numbers beyond 100"
    return None


def _find_largest(text: str) -> float:
    return max(map(float, _NUMBER.findall(text)), default=0.0)
