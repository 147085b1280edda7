# SPDX-License-Identifier: Apache-2.0
"""How hard problems are for a model: the share of its responses that the verifier of their source calls right.

    python -m data_preprocessing.difficulty --input data/math/train.parquet --output-dir data/graded BACKEND
    python -m data_preprocessing.difficulty ... --band 0.2 0.8

Shows the model the prompt of the row as it is, --samples times, and writes ``extra_info.difficulty``: the model, the
number of responses, how many of them could be graded, and the pass rate. --band keeps only rows whose pass rate lies in
it, ends included: PRIME's filter of prompts (arXiv 2502.01456), here before training instead of in it.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from data_preprocessing.command import Made, positive
from data_preprocessing.dialogues import Ask, Dialogue
from data_preprocessing.grading import Judge
from data_preprocessing.rl_input import Row, with_extra
from data_preprocessing.row_stage import Outcome, RowStage, finished, run_model_stage, stage_parser
from data_preprocessing.stage import Removal
from prime_ext.generate.backend import Response, Sampling
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import source_of

SAMPLING = Sampling(temperature=1.0, max_new_tokens=3072)
SAMPLES = 8
TYPES = {"model": pa.string(), "samples": pa.int32(), "graded": pa.int32(), "pass_rate": pa.float64()}
FIELDS = {"difficulty": pa.struct(TYPES)}
RULES = {
    "ungraded": "the verifier could grade none of the responses",
    "too_hard": "the pass rate is below --band",
    "too_easy": "the pass rate is above --band",
}


def outside(pass_rate: float, band: Sequence[float] | None) -> str | None:
    """The rule by which a pass rate goes, or None. The ends belong to the band."""
    if band is None:
        return None
    # Means of whole numbers: 4 of 5 are 0.8, whatever binary fractions say.
    if pass_rate < band[0] - 1e-9:
        return "too_hard"
    return "too_easy" if pass_rate > band[1] + 1e-9 else None


def estimating(row: Row, model: str, samples: int, band: Sequence[float] | None, code_reward: str) -> Dialogue[Outcome]:
    """The dialogue about a row. Responses that the verifier cannot grade are in no mean."""
    # An unknown source is an error before its row costs anything.
    source_of(row["data_source"])
    gold, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    said: list[Response] = yield [Ask(row["prompt"], sample=number) for number in range(samples)]
    verdicts: list[Verdict] = yield [Judge(row["data_source"], one.text, gold, extra, code_reward) for one in said]
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    if not scores:
        return Removal("ungraded", verdicts[0].detail)
    pass_rate = sum(scores) / len(scores)
    reason = outside(pass_rate, band)
    if reason is not None:
        return Removal(reason, f"pass rate {pass_rate:g} of {len(scores)} responses")
    difficulty = {"model": model, "samples": samples, "graded": len(scores), "pass_rate": pass_rate}
    return [{**row, "extra_info": {**extra, "difficulty": difficulty}}]


def run(options: argparse.Namespace) -> Made:
    """Ask, grade and write. Returns the report and the parquet files."""
    positive(options, "samples")
    low, high = options.band or (0, 1)
    if not 0 <= low <= high <= 1:
        raise SourceError(f"--band must be two numbers from 0 to 1, the lower first, got {low} {high}")
    settings = {"samples": options.samples, "band": options.band, "code_reward": options.code_reward}
    stage = RowStage("Difficulty", RULES, settings, partial(with_extra, fields=FIELDS))
    return run_model_stage(options, stage, partial(estimating, **settings))


def main(words: Sequence[str] | None = None) -> int:
    top = stage_parser("difficulty", __doc__, SAMPLING)
    top.add_argument("--samples", type=int, default=SAMPLES, help=f"responses per problem (default: {SAMPLES})")
    about = "keep pass rates from LOW to HIGH, as 0.2 0.8"
    top.add_argument("--band", type=float, nargs=2, metavar=("LOW", "HIGH"), help=about)
    about = "of programs: all: right if every test passes (default); fraction: the share of tests that pass"
    top.add_argument("--code-reward", choices=("all", "fraction"), default="all", help=about)
    return finished(top, run, words)


if __name__ == "__main__":
    sys.exit(main())
