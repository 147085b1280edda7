# SPDX-License-Identifier: Apache-2.0
"""Where the problems of code RL come from: APPS, TACO, CodeContests and Codeforces, on the hub or in local files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data_preprocessing.code_problem import CodeProblem, apps_row, code_contests_row, codeforces_row
from data_preprocessing.row_source import Raw, RowSource
from data_preprocessing.submissions import one_row_per_problem
from prime_ext.tasks.action_prompt import messages
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.rows import BadRow


@dataclass(frozen=True)
class CodeSource(RowSource):
    """A set of programming problems.

    Attributes:
        parse: fills in the problem of a row.
    """

    parse: Callable[[Mapping[str, Any], CodeProblem], CodeProblem] = field(kw_only=True)

    kind = CodeProblem

    def problem(self, row: Raw, split: str, index: int) -> CodeProblem:
        if isinstance(row, BadRow):
            raise row
        return self.parse(row, CodeProblem(self.data_source, split, index, ""))

    def rl_row(self, problem: CodeProblem, system: str) -> dict[str, Any]:
        prompt = messages(problem.statement(), "code", system)
        extra = {"split": problem.split, "index": problem.index}
        return rl_row(problem.data_source, prompt, "code", problem.ground_truth(), extra)


_TRAIN_TEST = {"train": "train", "test": "test"}

CODE_SOURCES = {
    source.name: source
    for source in (
        CodeSource(
            "apps",
            "APPS, problems of programming contests and interviews",
            data_source="apps",
            parse=apps_row,
            hub="codeparrot/apps",
            hub_splits=_TRAIN_TEST,
            # Its own loading is a script, which the datasets library no longer runs.
            hub_files={"train": "train.jsonl", "test": "test.jsonl"},
            local={"train": "apps/train.jsonl"},
            id_column="problem_id",
        ),
        CodeSource(
            "codecontests",
            "CodeContests, the training data of AlphaCode",
            data_source="codecontests",
            parse=code_contests_row,
            hub="deepmind/code_contests",
            hub_splits={"train": "train", "validation": "valid", "test": "test"},
            local={"train": "codecontests/train.jsonl"},
            # Names are not unique across sites; what the stages find counts.
        ),
        CodeSource(
            "taco",
            "TACO, problems of APPS, CodeContests and further sites",
            data_source="taco",
            parse=apps_row,
            hub="BAAI/TACO",
            hub_splits=_TRAIN_TEST,
            hub_files={"train": "ALL/train-*.parquet", "test": "ALL/test-*.parquet"},
            local={"train": "taco/train.jsonl"},
        ),
        CodeSource(
            "codeforces",
            "Codeforces, from a set of submissions in Python",
            data_source="codeforces",
            parse=codeforces_row,
            hub="MatrixStudio/Codeforces-Python-Submissions",
            hub_splits=_TRAIN_TEST,
            local={"train": "codeforces/train.jsonl"},
            joined=one_row_per_problem,
        ),
    )
}
