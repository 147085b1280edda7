# SPDX-License-Identifier: Apache-2.0
r"""Detection of right answers that repeat the problem: ``\boxed{2+3*4}`` for "Compute ``2+3*4``".

Rules: docs/reference/verifier_rules.md.
"""

import math
from collections.abc import Sequence

from prime_ext.verifiers.math.answer_tree import Group, split
from prime_ext.verifiers.math.notation import FUNCTIONS, Token, fold, scan, tokenize
from prime_ext.verifiers.math.structure import read, read_answer

_OPERATIONS = (
    frozenset("+ - / ^ ! | = < > : & ‖".split())
    | FUNCTIONS
    | frozenset("cdot frac sqrt binom sum prod int lim lfloor lceil le ge ne pmod mod".split())
)
_IGNORED = frozenset("{ } ( ) [ ] $ , \\{ \\}".split())


def restatement(answer: str, gold: str, prompt: str) -> str | None:
    """Return the expression that restates the problem, or None; the answer must be a right one."""
    asked = _reduce(tuple(scan(fold(prompt[-20_000:]))))
    wanted = _list_expressions(gold)
    for text, tokens in _list_expressions(answer).items():
        bare = text[1:] if text[:1] == ("-",) else text
        operations = [
            token for token in tokens[len(text) - len(bare) :] if token.text in _OPERATIONS
        ]
        if text in wanted or not (operations or "*" in bare):
            continue
        if (
            len(bare) == 3
            and bare[1] == "/"
            and bare[0].isdigit()
            and bare[2].isdigit()
            and (math.gcd(int(bare[0]), int(bare[2])) == 1)
        ):
            continue
        if _find(text, asked):
            return " ".join(text)
    return None


def _list_expressions(answer: str) -> dict[tuple[str, ...], Sequence[Token]]:
    """Return an answer and its members, by what they are without notation."""
    tokens = tokenize(answer)
    parts = [] if isinstance(read(answer), Group) else [tokens]
    start = 0
    for index, token in enumerate((*tokens, Token("sign", ","))):
        if token.text in (",", ";", "and", "or"):
            parts.append(tokens[start:index])
            start = index + 1
    # The last side of an equation is its value.
    for part in tuple(parts):
        sides, between = split(part, lambda token: token.text == "=")
        parts += sides[-1:] if between else []
    parts = [part for part in parts if not isinstance(read_answer(part), Group)]
    return {reduced: part for part in parts if (reduced := tuple(_reduce(part)))}


def _reduce(tokens: Sequence[Token]) -> list[str]:
    """Return what is written, without brackets, spaces and signs of products and fractions."""
    reduced: list[str] = []
    texts = [token.text for token in tokens]
    for index, (kind, text, _, _) in enumerate(tokens):
        if text == "}" and texts[index + 1 : index + 2] == ["{"]:
            reduced.append("/")
        elif text == "_" and kind == "sign" and reduced[-1:] == ["C"]:
            reduced[-1] = "binom"
        elif (
            text == "C"
            and texts[index - 1 : index] != ["_"]
            and reduced[-1:]
            and (
                reduced[-1].isdigit()
                and texts[index + 1 : index + 2]
                and texts[index + 1].isdigit()
            )
        ):
            reduced.append("/")
        elif text in ("frac", "cdot", "^") and kind == "command":
            if (
                text == "cdot"
                and index + 1 < len(texts)
                and reduced[-1:]
                and (reduced[-1].isdigit() and texts[index + 1].isdigit())
            ):
                reduced.append("*")
        elif kind == "letters":
            reduced += text
        elif (
            kind == "number" and reduced[-1:] and reduced[-1].isdigit() and texts[index - 1] == "("
        ):
            reduced += ["*", text]
        elif text == "^" and reduced[:1] == ["binom"] or text == "circ":
            reduced.append("/" if text == "^" else "circ")
        elif not (text in _IGNORED and kind == "sign") and text != "_":
            reduced.append(text.casefold() if kind == "word" else text)
    return reduced


def _find(text: Sequence[str], within: Sequence[str]) -> bool:
    """Return whether the tokens stand in a row; a number in them is not the end of a longer one."""
    return any(
        list(within[start : start + len(text)]) == list(text)
        for start, one in enumerate(within)
        if one == text[0]
    )
