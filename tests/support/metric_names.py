# SPDX-License-Identifier: Apache-2.0
"""Metrics that prime_ext logs, found in its code, and those that docs/reference/metrics.md explains."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prime_ext.reward.pspo_info import MEANS, MEANS_OF_SCORES
from prime_ext.trainer.prompt_judge import NOT_SCORED
from prime_ext.verifiers import Outcome

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"

# Metrics of training runs; train/ and val/ are those of prime_ext.offline_prm.
OURS = re.compile(r"(prm|prime|pspo|agent|verifier|weight_sync|train|val)/[a-z0-9_/]+|perf/mfu/prm")
UPDATES = ("before", "after")

# Names that the code puts together, with what it puts in. `prm/` takes whatever the update of the PRM reports: verl's
# engine reports the first three, prime_ext/trainer/implicit_prm.py the others.
PUT_TOGETHER: Mapping[str, Iterable[str]] = {
    "prm/{}": ("loss", "grad_norm", "lr", "bias", *MEANS_OF_SCORES),
    "prm/reward_sum/{}": ("correct", "wrong"),
    "prm/pair_accuracy/{}_update": UPDATES,
    "prm/absolute_accuracy/{}_update": UPDATES,
    "prime/{}/return_std": ("outcome", "process", "outcome_and_process", "turns"),
    "prime/kl/{}": ("prm", "average"),
    "prime/kl/{}_coefficient": ("prm", "average"),
    "prime/chain/{}": ("score", "factor", "reward"),
    "verifier/{}": (*(str(outcome) for outcome in Outcome), NOT_SCORED),
    "pspo/{}": MEANS,
    "agent/{}": ("<field>/<name>",),
    "train/{}": ("loss", "grad_norm"),
}


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield string constants, and f-strings with {} for what is put in. The parts of an f-string are not texts."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


@functools.cache
def names_in_code() -> frozenset[str]:
    """Return every metric that a module of prime_ext writes. KeyError: :data:`PUT_TOGETHER` lacks one."""
    names: set[str] = set()
    for path in sorted((ROOT / "prime_ext").rglob("*.py")):
        if path.parent.name == "config":
            # prime/process and others are groups of settings there.
            continue
        code = path.read_text()
        names.update(f"timing_s/{name}" for name in re.findall(r'marked_timer\("(\w+)"', code))
        for text in _texts(ast.parse(code)):
            if not OURS.fullmatch(text.replace("{}", "x")):
                continue
            if "{}" in text:
                names.update(text.format(value) for value in PUT_TOGETHER[text])
            else:
                names.add(text)
    return frozenset(names)


def names_on_page() -> set[str]:
    """Return every metric in the first column of a table of the page."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def undocumented(logged: Iterable[str]) -> list[str]:
    """Return those of our metrics among the logged ones that the page does not explain."""
    page = names_on_page()
    patterns = [re.compile(re.sub(r"<\w+>", r"\\w+", name)) for name in page if "<" in name]
    missing = {name for name in logged if OURS.fullmatch(name)} - page
    return sorted(name for name in missing if not any(pattern.fullmatch(name) for pattern in patterns))
