# SPDX-License-Identifier: Apache-2.0
"""Chooses mutants for mutmut, and counts those that were killed; commands: docs/explanation/decisions/tests.md.

Of each module come the mutants whose names have the smallest hashes: where functions are equal, so are their mutants. A
file of counts that is not there is written: the modules' shares, and the functions that no test calls in this process,
left out then and later. So are mutants of prose, a string with a blank.
"""

import hashlib
import json
import re
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

SEED = 19
SIZES = {"algorithms": 160, "prm": 50, "verifiers": 120}
PROSE = re.compile(r'"[^"]* [^"]*"')


def mutants():
    """Name and exit code of every mutant, by module."""
    files = {path.relative_to("mutants").with_suffix(""): path for path in Path("mutants/prime_ext").rglob("*.meta")}
    return {str(module): json.loads(files[module].read_text())["exit_code_by_key"] for module in sorted(files)}


def is_prose(name, module):
    """Whether a line changed in nothing but the words of a string."""
    lines = [line for line in get_diff_for_mutant(name, path=module).splitlines() if line[:3] not in ("---", "+++")]
    removed, added = ([PROSE.sub("", line[1:]) for line in lines if line[:1] == sign] for sign in "-+")
    return removed == added


def choose(counts_file):
    found = {module: {name: name.rpartition("__mutmut_")[0] for name in codes} for module, codes in mutants().items()}
    if not counts_file.exists():
        tests = json.loads(Path("mutants/mutmut-stats.json").read_text())["tests_by_mangled_function_name"]
        untested = {function for names in found.values() for function in names.values() if not tests.get(function)}
        sizes = {module: sum(name not in untested for name in names.values()) for module, names in found.items()}
        shares = {}
        for room, wanted in SIZES.items():
            own = {module: size for module, size in sizes.items() if module.split("/")[1] == room}
            total = sum(own.values())
            shares |= {module: min(size, max(2, round(wanted * size / total))) for module, size in own.items()}
        counts_file.write_text(json.dumps({"modules": shares, "untested": sorted(untested)}, indent=1))
    counts = json.loads(counts_file.read_text())
    for module, wanted in counts["modules"].items():
        names = [name for name, function in found.get(module, {}).items() if function not in counts["untested"]]
        names.sort(key=lambda name: hashlib.sha256(f"{SEED} {name.rpartition('.')[2]}".encode()).digest())
        for name in islice((name for name in names if not is_prose(name, module)), wanted):
            print(name)


def count(names):
    rows = {}
    for module, codes in mutants().items():
        rows[module] = Counter(status_by_exit_code[codes[name]] for name in names if name in codes)
    for module, statuses in {**rows, "all": sum(rows.values(), Counter())}.items():
        if statuses:
            print(f"{module}: {statuses['killed'] + statuses['timeout']} of {statuses.total()}")


if __name__ == "__main__":
    what, file = sys.argv[1], Path(sys.argv[2])
    choose(file) if what == "choose" else count(file.read_text().split())
