# SPDX-License-Identifier: Apache-2.0
r"""Detection of right answers that repeat the problem: ``\boxed{2+3*4}`` for "Compute ``2+3*4``".

Rules: docs/reference/verifier_rules.md.
"""

import math
import re
from collections.abc import Iterator

from prime_ext.verifiers.math.normalize import add_braces, normalize, unify_notation
from prime_ext.verifiers.math.structure import Equation, Group, Leaf, Node, Relation, read_answer

_OPERATION = re.compile(
    r"[+*/^!|=<>&:-]|sqrt|binom|sin|cos|tan|cot|log|ln|exp|sum|prod|int|gcd|lcm|max|min|floor|ceil"
)
_FRACTION = re.compile(r"(\d+)/(\d+)")
_IGNORED = re.compile(r"\\?[{}()\[\]$]|\\(?:frac|text|pmod)?")
_SPACES = re.compile(
    r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+|(?<=[a-zA-Z])\s+(?=\d)|(?<=\d)\s+(?=[a-zA-Z])"
)


def restatement(answer: str, gold: str, prompt: str) -> str | None:
    """Return the expression that restates the problem, or None; the answer must be a right one."""
    wanted = set(_texts(gold))
    asked = _strip_notation(prompt)
    for text in _texts(answer):
        bare = _strip_notation(text)
        fraction = _FRACTION.fullmatch(bare.lstrip("-"))
        if text in wanted or not _OPERATION.search(bare.lstrip("-")):
            continue
        if fraction and math.gcd(int(fraction.group(1)), int(fraction.group(2))) == 1:
            continue
        if re.search(
            rf"(?<![\d.])(?<![a-zA-Z](?=[a-zA-Z])){re.escape(bare)}(?!\d|\.\d|(?<=[a-zA-Z])[a-zA-Z])",
            asked,
        ):
            return text
    return None


def _texts(answer: str) -> Iterator[str]:
    text = normalize(answer)
    if ":" in text:
        yield text
    yield from expressions(read_answer(text))


def expressions(node: Node) -> Iterator[str]:
    """Yield an answer's expressions: of a list its members', equations and relations as a whole."""
    if isinstance(node, Leaf):
        yield node.text
    elif isinstance(node, Group):
        for item in node.items:
            yield from expressions(item)
    elif isinstance(node, Equation):
        yield "=".join(node.sides)
        yield from expressions(node.value)
    elif isinstance(node, Relation):
        yield "".join(
            side + operator
            for side, operator in zip(node.sides, (*node.operators, ""), strict=True)
        )


def _strip_notation(text: str) -> str:
    text = re.sub(
        r"_\{?(\w)\}? ?(?=\d)",
        r"_{\1} ",
        re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", " ".join(text.split())),
    )
    text = (
        add_braces(unify_notation(text))
        .replace("\\cdot", "*")
        .replace("\\text{degrees}", "^\\circ")
    )
    return _SPACES.sub("", _IGNORED.sub("", re.sub(r"\}\s*\{", "/", text)))
