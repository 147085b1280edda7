# SPDX-License-Identifier: Apache-2.0
r"""Detection of right answers that repeat the problem: ``\boxed{2+3*4}`` for "Compute ``2+3*4``".

Rules: docs/reference/verifier_rules.md.
"""

import math
import re
from collections.abc import Iterable

from prime_ext.verifiers.math.answer_tree import Group, split_at
from prime_ext.verifiers.math.notation import FUNCTIONS, Token, Tokens, fold, scan, tokenize
from prime_ext.verifiers.math.structure import read_answer

MAX_PROMPT = 20_000
_OPERATIONS = (
    frozenset("+ - / ^ ! | = < > : & ‖".split())
    | FUNCTIONS
    | frozenset("cdot frac sqrt binom sum prod int lim lfloor lceil le ge ne pmod mod".split())
)
# Notations of one expression: patterns of tokens, each with a space after it, and replacements.
_NOTATIONS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\S)\} \{ ", "/ "),
        (r"(?<!\S)C _ ", "binom "),
        (r"(?<=\d )C (?=\d)", "/ "),
        (r"(?<=\d )(?:[)}] )*(?:cdot (?:[({] )*|\( )(?=\d)", "* "),
        (r"(?<!\S)(?:frac|cdot|[{}()\[\]$,_]|\\[{}]) ", ""),
        (r"(?<=binom )(\S+) \^ ", r"\1 / "),
    )
]
_FRACTION = re.compile(r"(\d) / (\d) ")


def restatement(answer: str, gold: str, prompt: str) -> str | None:
    """Return the expression that restates the problem, or None; the answer must be a right one."""
    problem = _reduce(scan(fold(prompt[-MAX_PROMPT:])))
    gold_expressions = _list_expressions(gold)
    for expression, tokens in _list_expressions(answer).items():
        bare = expression.removeprefix("- ")
        operations = [token for token in tokens[bare != expression :] if token.text in _OPERATIONS]
        if expression in gold_expressions or not (operations or "*" in bare):
            continue
        fraction = _FRACTION.fullmatch(bare)
        if fraction and math.gcd(*map(int, fraction.groups())) == 1:
            continue
        if f" {expression}" in f" {problem}":
            return expression.strip()
    return None


def _list_expressions(answer: str) -> dict[str, Tokens]:
    """Return an answer, its members and the last sides of its equations, by :func:`_reduce`."""
    tokens = tokenize(answer)
    members: list[list[Token]] = [[]]
    for token in tokens:
        if token.text in (",", ";", "and", "or"):
            members.append([])
        else:
            members[-1].append(token)
    pieces = [tokens, *map(tuple, members)]
    pieces += [split_at(piece, "=")[-1] for piece in pieces]
    pieces = [piece for piece in pieces if not isinstance(read_answer(piece), Group)]
    return {text: piece for piece in pieces if (text := _reduce(piece))}


def _reduce(tokens: Iterable[Token]) -> str:
    """Return tokens without brackets and with one notation of products and fractions."""
    reduced = ""
    for token in tokens:
        text = token.text.casefold() if token.kind == "word" else token.text
        reduced += f"{' '.join(text) if token.kind == 'letters' else text} "
    for pattern, replacement in _NOTATIONS:
        reduced = pattern.sub(replacement, reduced)
    return reduced
