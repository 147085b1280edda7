# SPDX-License-Identifier: Apache-2.0
"""The final selection of math problems by the votes of ``data_preprocessing.validate_votes``.

    prime-ext data selection --input data/voted/train.parquet \\
        --output-dir data/selected

PRIME describes its final selection in prose (arXiv 2502.01456, section and appendix on data):
problems stay that are consistently found solvable, whose solutions agree, and whose agreed answer
is the reference. The thresholds are options; their defaults are a clear majority, three of five.
Rows of other verifiers than the math verifier pass. The stage queries no model.
"""

import sys
from collections.abc import Sequence

from prime_ext.utils.arguments import SHARE
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.sources import find_source

from .command import program
from .model_stage import Outcome, Row, build_stage_parser, run_stage
from .stages import Removal
from .validate_votes import Votes

RULES = {
    "no_votes": "no model has voted",
    "unsolvable": "too few solutions end in an answer",
    "disagreement": "too few solutions give the same answer",
    "mismatch": "the answer that most solutions give is not the reference",
}


def find_reason(
    votes: Sequence[Votes], min_solvable: float, min_agreement: float
) -> Removal | None:
    """Return why a problem goes, by one of :data:`RULES`; None if it stays.

    ``min_solvable`` and ``min_agreement`` are shares of the solutions of each model that voted.
    """
    if not votes:
        return Removal("no_votes", "")
    reasons = [
        reason
        for model_votes in votes
        if (reason := _find_model_reason(model_votes, min_solvable, min_agreement)) is not None
    ]
    return min(reasons, key=lambda reason: list(RULES).index(reason.rule), default=None)


def _find_model_reason(votes: Votes, min_solvable: float, min_agreement: float) -> Removal | None:
    of = f"of {votes.solutions} by {votes.model}"
    # 0.6 of 5 must be 3 in spite of binary fractions.
    solvable, agreeing = (share * votes.solutions - 1e-9 for share in (min_solvable, min_agreement))
    if votes.solvable < solvable:
        return Removal("unsolvable", f"{votes.solvable} {of} end in an answer")
    if votes.answer is None or votes.agreeing < agreeing:
        return Removal("disagreement", f"{votes.agreeing} {of} give {votes.answer}")
    if not votes.answer_matches:
        return Removal(
            "mismatch", f"{votes.agreeing} {of} give {votes.answer}, {votes.matching} the reference"
        )
    return None


def select(row: Row, min_solvable: float = 0.6, min_agreement: float = 0.6) -> Outcome:
    """Return the row, or why it goes. Raises SourceError: its votes have other fields."""
    if find_source(row["data_source"]).task != "math":
        return [row]
    try:
        votes = [Votes(**counts) for counts in row["extra_info"].get("votes") or ()]
    except TypeError as error:
        raise SourceError(f"extra_info.votes are not those of validate_votes: {error}") from error
    return find_reason(votes, min_solvable, min_agreement) or [row]


@program("selection")
def main(words: Sequence[str] | None = None) -> int:
    top = build_stage_parser("selection", __doc__)
    for name, what in (("solvable", "end in an answer"), ("agreement", "agree")):
        about = f"share of a model's solutions that must {what} (default: %(default)s)"
        top.add_argument(f"--min-{name}", type=SHARE, default=0.6, help=about)
    options = top.parse_args(words)
    shares = {name: getattr(options, name) for name in ("min_solvable", "min_agreement")}

    def work(rows: Sequence[Row]) -> list[Outcome]:
        return [select(row, **shares) for row in rows]

    return run_stage(options, work, title="Final selection", rules=RULES, settings=shares)


if __name__ == "__main__":
    sys.exit(main())
