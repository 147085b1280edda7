# SPDX-License-Identifier: Apache-2.0
r"""Votes of a model on math problems: solvable, solutions that agree, the right reference.

    prime-ext data validate-votes --input data/math/train.parquet \
        --output-dir data/voted BACKEND

Asks for --solutions per problem and writes the counts into ``extra_info.votes`` of every row. Run
again on the output with another model, it adds that model's votes. ``data_preprocessing.selection``
decides.

The fourth stage of PRIME's math data (arXiv 2502.01456, appendix on data) judges every problem by
five solutions of a strong model, which end in a box with the answer or the words ``No solution``.
Unlike in the published script, a solution without a box counts as neither, and answers are grouped
by the math verifier, not by their text.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import permutations
from typing import Any

import pyarrow as pa

from prime_ext.generate.backend import Response, Sampling
from prime_ext.tasks.votes import count_votes
from prime_ext.utils.arguments import COUNT
from prime_ext.verifiers.math.answer_extraction import extract_answer
from prime_ext.verifiers.sources import find_source

from .command import program
from .dialogues import Ask, Dialogue
from .grading import Judge
from .model_stage import Row, add_to_extra, build_stage_parser, extract_problem, run_model_stage
from .stages import Removal

# As the published script.
SAMPLING = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=16384)
SOLUTIONS = 5
SYSTEM = (
    "You check mathematics problems for a problem collection. You solve them with care and report"
    " what is wrong."
)
INSTRUCTION = (
    "Solve the problem below step by step.\n\n"
    "If it can be solved, give the final answer at the end as \\boxed{answer}.\n"
    "If it cannot be solved, because a condition is missing, the conditions contradict each other"
    " or nothing definite is asked, say what is wrong and end with \\boxed{No solution}.\n\n"
    "Problem:\n"
)
# Of the letters and digits alone: boxes write the words with and without spaces, in any markup.
_UNSOLVABLE = re.compile(
    r"(?:th(?:is|e)problem)?(?:has|there(?:is|are|exists?))?no(?:valid)?solutions?"
    r"(?:exists?|found|(?:is)?possible)?"
    r"|(?:th(?:is|e)problem)?(?:is)?(?:unsolvable|notsolvable|can(?:not|t)besolved)"
)
_MARKUP = re.compile(r"\\(?:text|math)[a-z]*|\\q?quad|[\W_]")
_COUNTS = ("solutions", "solvable", "unsolvable", "agreeing", "matching")
_ANSWER = {"answer": pa.string(), "answer_matches": pa.bool_()}
FIELDS = {
    "votes": pa.list_(
        pa.struct({"model": pa.string(), **dict.fromkeys(_COUNTS, pa.int32()), **_ANSWER})
    )
}


@dataclass(frozen=True)
class Votes:
    """Counts of a model's solutions of a problem.

    ``solutions`` are all, ``solvable`` those with an answer, ``unsolvable`` those that state that
    there is none, ``agreeing`` those with the most frequent ``answer`` (of several the first, or
    None), and ``matching`` those with the reference.
    """

    model: str
    solutions: int
    solvable: int
    unsolvable: int
    agreeing: int
    matching: int
    answer: str | None
    answer_matches: bool


def says_unsolvable(answer: str) -> bool:
    """Return whether the content of a box says that no solution exists."""
    return _UNSOLVABLE.fullmatch(_MARKUP.sub("", answer).casefold()) is not None


def tally_votes(
    model: str, answers: Sequence[str | None], equal: set[tuple[str, str]], matching: set[str]
) -> Votes:
    """Count votes by the content of each solution's box, None without one.

    ``equal`` are pairs of answers of which the first is right where the second is the reference;
    ``matching`` the answers that are the reference.
    """
    counted = [None if answer is None or says_unsolvable(answer) else answer for answer in answers]

    def same(first: str, second: str) -> bool:
        return first == second or ((first, second) in equal and (second, first) in equal)

    ballot = count_votes(counted, [float(answer in matching) for answer in counted], same)
    most = max(ballot.votes, default=0)
    answer = ballot.answers[ballot.votes.index(most)] if most else None
    solvable = sum(answer is not None for answer in counted)
    unsolvable = sum(answer is not None and says_unsolvable(answer) for answer in answers)
    right = sum(answer in matching for answer in counted)
    return Votes(model, len(answers), solvable, unsolvable, most, right, answer, answer in matching)


def vote_on_row(row: Row, model: str, solutions: int) -> Dialogue[list[Row] | Removal]:
    """Hold the dialogue about a row of mathematics; add its votes to those of other models."""
    earlier = [votes for votes in row["extra_info"].get("votes") or () if votes["model"] != model]
    if find_source(row["data_source"]).task != "math":
        return [_set_votes(row, earlier or None)]
    user = {"role": "user", "content": INSTRUCTION + extract_problem(row)}
    messages = [{"role": "system", "content": SYSTEM}, user]
    responses: list[Response] = yield [Ask(messages, sample=number) for number in range(solutions)]
    answers = [
        None if response.finish == "length" else extract_answer(response.text)
        for response in responses
    ]
    distinct = list(
        dict.fromkeys(answer for answer in answers if answer and not says_unsolvable(answer))
    )
    gold = row["reward_model"]["ground_truth"]
    pairs = list(permutations(distinct, 2))
    verdicts = yield [
        *(Judge("math", f"\\boxed{{{first}}}", second) for first, second in pairs),
        *(Judge("math", f"\\boxed{{{answer}}}", gold) for answer in distinct),
    ]
    equal = {pair for pair, verdict in zip(pairs, verdicts, strict=False) if verdict.correct}
    matching = {
        a for a, verdict in zip(distinct, verdicts[len(pairs) :], strict=True) if verdict.correct
    }
    return [_set_votes(row, [*earlier, asdict(tally_votes(model, answers, equal, matching))])]


def _set_votes(row: Row, votes: list[dict[str, Any]] | None) -> Row:
    return {**row, "extra_info": {**row["extra_info"], "votes": votes}}


@program("validate_votes")
def main(words: Sequence[str] | None = None) -> int:
    top = build_stage_parser("validate_votes", __doc__, SAMPLING)
    top.add_argument(
        "--solutions", type=COUNT, default=SOLUTIONS, help=f"per problem (default: {SOLUTIONS})"
    )
    options = top.parse_args(words)
    settings = {"solutions": options.solutions}
    schema = partial(add_to_extra, fields=FIELDS)
    dialogue = partial(vote_on_row, **settings)
    return run_model_stage(
        options, dialogue, title="Validation by votes", rules={}, settings=settings, schema=schema
    )


if __name__ == "__main__":
    sys.exit(main())
