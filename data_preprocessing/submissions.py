# SPDX-License-Identifier: Apache-2.0
"""Problems from a set that says each of them once per submission, as the Codeforces submissions do."""

import json
import tempfile
from collections import defaultdict

from data_preprocessing.code_problem import MOST_PROGRAMS, SUBMISSION_PROGRAMS
from data_preprocessing.row_source import Numbered
from prime_ext.utils.rows import BadRow

_ACCEPTED = "OK"
SUBMISSIONS = "submissions"


def one_row_per_problem(rows: Numbered) -> Numbered:
    """The first row of each problem, with programs that were accepted for it and the number of its submissions.

    A problem is a ``contestId`` and an ``index``; a program counts if its ``verdict`` is OK and its
    ``programmingLanguage`` a Python 3. First rows wait in a temporary file: memory grows with the problems' programs
    and not with the rows. Rows that name no problem come out as they are, to be bad ones.
    """
    programs: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as waiting:
        for number, row in rows:
            if isinstance(row, BadRow):
                yield number, row
                continue
            if row.get("contestId") is None or row.get("index") is None:
                yield number, BadRow("no contestId and index, which name the problem")
                continue
            name = f"{row['contestId']} {row['index']}"
            if name not in counts:
                kept = {column: value for column, value in row.items() if column not in ("code", "prompt", "response")}
                waiting.write(json.dumps([number, name, kept]) + "\n")
            counts[name] += 1
            code = row.get("code")
            python = "3" in str(row.get("programmingLanguage", ""))
            if row.get("verdict") == _ACCEPTED and python and isinstance(code, str):
                if len(programs[name]) < MOST_PROGRAMS:
                    programs[name].append(code)
        waiting.seek(0)
        for line in waiting:
            number, name, row = json.loads(line)
            yield number, {**row, SUBMISSION_PROGRAMS: programs[name], SUBMISSIONS: counts[name]}
