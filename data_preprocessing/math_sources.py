# SPDX-License-Identifier: Apache-2.0
"""Where the problems of math RL come from: sets on the hub or in local files, and the generated task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data_preprocessing.math_problem import MathProblem, gsm8k_row, solved_row
from data_preprocessing.row_source import Raw, RowSource
from prime_ext.tasks import last_digit_chain
from prime_ext.tasks.action_prompt import messages
from prime_ext.tasks.cells import text_of_cell
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.rows import BadRow


@dataclass(frozen=True)
class MathSource(RowSource):
    """A set of math problems.

    Attributes:
        parse: problem, solution and answer of a row.
    """

    parse: Callable[[Mapping[str, Any]], tuple[str, str, str]] = field(kw_only=True)

    kind = MathProblem

    def problem(self, row: Raw, split: str, index: int) -> MathProblem:
        if isinstance(row, BadRow):
            raise row
        problem, solution, answer = self.parse(row)
        data_source = self.data_source
        if "{source}" in data_source:
            if "source" not in row:
                raise BadRow(f"no column source; it has {', '.join(map(str, row)) or 'none'}")
            data_source = data_source.replace("{source}", text_of_cell(row["source"], "source"))
        return MathProblem(data_source, split, index, problem, solution, answer)

    def rl_row(self, problem: MathProblem, system: str) -> dict[str, Any]:
        bare = [{"role": "user", "content": problem.problem}]
        prompt = bare if self.bare else messages(problem.problem, "math", system)
        extra = {"split": problem.split, "index": problem.index}
        return rl_row(problem.data_source, prompt, "math", problem.answer, extra)


_TRAIN_TEST = {"train": "train", "test": "test"}

SOURCES = {
    source.name: source
    for source in (
        MathSource(
            "gsm8k",
            "GSM8K, grade-school word problems",
            data_source="openai/gsm8k",
            parse=gsm8k_row,
            hub="openai/gsm8k",
            config="main",
            hub_splits=_TRAIN_TEST,
            local={"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
        ),
        MathSource(
            "math",
            "MATH, competition problems",
            data_source="DigitalLearningGmbH/MATH-lighteval",
            parse=solved_row,
            hub="DigitalLearningGmbH/MATH-lighteval",
            hub_splits=_TRAIN_TEST,
            local={"train": "math/train.jsonl"},
            id_column="unique_id",
        ),
        MathSource(
            "numina",
            "NuminaMath-CoT, and any set with columns problem, solution or answer, and source",
            data_source="numina_{source}",
            parse=solved_row,
            hub="AI-MO/NuminaMath-CoT",
            hub_splits=_TRAIN_TEST,
            local={"train": "numina/train.jsonl"},
            id_column="id",
        ),
        MathSource(
            "last_digit_chain",
            "the generated task of the quickstart",
            data_source=last_digit_chain.DATA_SOURCE,
            parse=solved_row,
            generate=last_digit_chain.generated,
            bare=True,
        ),
    )
}
