# SPDX-License-Identifier: Apache-2.0
"""Chooses mutants for mutmut, and counts those that were killed. How it is used: docs/explanation/decisions/tests.md.

    python tests/mutants/sample.py choose COUNTS.json    the names, for `mutmut run`; COUNTS.json: mutants per module
    python tests/mutants/sample.py count NAMES           killed and all of these mutants, per module

Of each module come those mutants whose names have the smallest hashes with the seed: where two versions of a function
are equal, so are their mutants. A COUNTS.json that is not there is written: the modules' shares of all mutants, and the
functions that no test calls in this process, left out then and in later samples. Mutants of prose, a string with a
blank in it, are left out.
"""

import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

SEED = 19
SIZES = {"algorithms": 160, "prm": 50, "verifiers": 120}
PROSE = re.compile(r'"[^"]* [^"]*"')


def mutants():
    """Name and exit code of every mutant, by module."""
    found = defaultdict(dict)
    for path in sorted(Path("mutants/prime_ext").rglob("*.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            found[str(path.relative_to("mutants").with_suffix(""))][name] = code
    return found


def function_of(name):
    return name.rpartition("__mutmut_")[0]


def is_prose(name, path):
    """Whether a line changed in nothing but the words of a string."""
    lines = [line for line in get_diff_for_mutant(name, path=path).splitlines() if not line.startswith(("---", "+++"))]
    removed, added = ([PROSE.sub("", line[1:]) for line in lines if line[:1] == sign] for sign in "-+")
    return removed == added


def choose(counts_file):
    found = mutants()
    if not counts_file.exists():
        tested = json.loads(Path("mutants/mutmut-stats.json").read_text())["tests_by_mangled_function_name"]
        functions = {function_of(name) for names in found.values() for name in names}
        untested = sorted(functions - {name for name, tests in tested.items() if tests})
        sizes = {path: sum(function_of(name) not in untested for name in found[path]) for path in found}
        rooms = Counter()
        for path, size in sizes.items():
            rooms[path.split("/")[1]] += size
        shares = {
            path: min(size, max(2, round(SIZES[path.split("/")[1]] * size / rooms[path.split("/")[1]])))
            for path, size in sizes.items()
        }
        counts_file.write_text(json.dumps({"modules": shares, "untested": untested}, indent=1))
    counts = json.loads(counts_file.read_text())
    for path, wanted in counts["modules"].items():
        names = [name for name in found[path] if function_of(name) not in counts["untested"]]
        ranked = sorted(names, key=lambda name: hashlib.sha256(f"{SEED} {name.rpartition('.')[2]}".encode()).digest())
        for name in islice((name for name in ranked if not is_prose(name, path)), wanted):
            print(name)


def count(names):
    rows = defaultdict(Counter)
    for path, codes in mutants().items():
        rows[path].update(status_by_exit_code[codes[name]] for name in names if name in codes)
    rows["all"] = sum(rows.values(), Counter())
    for path, statuses in rows.items():
        if statuses:
            print(f"{path}: {statuses['killed'] + statuses['timeout']} of {statuses.total()} {dict(statuses)}")


if __name__ == "__main__":
    what, file = sys.argv[1], Path(sys.argv[2])
    choose(file) if what == "choose" else count(file.read_text().split())
