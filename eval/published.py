# SPDX-License-Identifier: Apache-2.0
"""Published numbers beside ours: which ones a run may stand beside, and where it was made in another way."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prime_ext.tasks.choice_metrics import METRICS
from prime_ext.tasks.task import Decoding
from prime_ext.tasks.task_file import TaskError, load_task

_AT_K = re.compile(r"(avg|pass|maj)@(\d+)")
# Of a decoding, what does not change which responses are likely.
_HARMLESS = ("name", "batch_size")


@dataclass(frozen=True)
class Published:
    """A published table row and our number for it.

    Attributes:
        metric: which one.
        source: where it was published.
        values: percent by model.
        rows: problems it was measured on; None if that is not known.
        ours: estimate of the same metric, with only a value where no interval is known; None if the run has none.
        differences: what is known to differ between their measurement and ours, in words.
    """

    metric: str
    source: str
    values: Mapping[str, float]
    rows: int | None
    ours: Mapping[str, Any] | None
    differences: tuple[str, ...]


def our_score(entry: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
    """Our estimate of a metric of a task file.

    ``accuracy`` and ``micro_f1``, which is the same, are the mean score of a response. ``macro_f1`` has no interval.

    Args:
        entry: of a task in ``results.json``.
        metric: name.
    """
    summary = entry["summary"]
    mean = f"avg@{summary['samples_per_problem']}"
    if metric in ("accuracy", "micro_f1"):
        return summary["scores"].get(mean)
    if metric in METRICS:
        value = (entry["choice"] or {}).get(metric)
        missing = {"standard_error": None, "low": None, "high": None, "problems": summary["problems"], "left_out": 0}
        return None if value is None else {"value": value, **missing}
    return summary["scores"].get(metric)


def published(name: str, entry: Mapping[str, Any]) -> list[Published]:
    """All published numbers of a task, in the order of its file.

    Args:
        name: of the task.
        entry: of the task in ``results.json``.
    """
    found = []
    for reference in entry["references"]:
        rows = reference.get("rows")
        ours = our_score(entry, reference["metric"])
        differences = decoding_differences(name, entry["decoding"], reference["metric"])
        problems = entry["summary"]["problems"]
        if rows is not None and rows != problems:
            differences.append(f"{problems:,} problems, published {rows:,}")
        if rows is None:
            differences.append("the number of published problems is not known")
        found.append(
            Published(reference["metric"], reference["source"], reference["values"], rows, ours, tuple(differences))
        )
    return found


def headline(name: str, entry: Mapping[str, Any]) -> Published | None:
    """The published numbers that fit the run best: first those of its own ``avg@n``, then those of single responses."""
    known = published(name, entry)
    n = entry["summary"]["samples_per_problem"]
    wanted = [f"avg@{n}", "accuracy", "micro_f1"]
    fitting = [own for metric in wanted for own in known if own.metric == metric and own.ours is not None]
    return next(iter(fitting), None)


def decoding_differences(name: str, decoding: Mapping[str, Any], metric: str) -> list[str]:
    """How a run's decoding differs from that of published numbers, in words.

    Published single responses were made with the decoding ``paper`` of the task file, ``avg@k`` and the like with the
    one of k responses.
    """
    try:
        known = load_task(name).decoding
    except TaskError:
        return ["the published decoding is not known: the task is none of prime_ext/tasks/benchmarks"]
    at_k = _AT_K.fullmatch(metric)
    k = int(at_k[2]) if at_k else 1
    fitting = [own for key, own in known.items() if own.n == k and (at_k or key == "paper")]
    if not fitting:
        return [f"the published decoding of {metric} is not known"]
    return in_words(decoding, asdict(fitting[0]))


def in_words(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """How our decoding differs from a published one."""
    changed = differing(theirs, ours)
    words = []
    if "n" in changed:
        words.append(f"{ours['n']} responses per problem, published {theirs['n']}")
    if set(changed) & {"do_sample", "temperature", "top_p", "top_k", "num_beams"}:
        words.append(f"{_drawn(ours)}, published {_drawn(theirs)}")
    for key, name in (("min_new_tokens", "at least"), ("max_new_tokens", "at most")):
        if key in changed:
            words.append(f"{name} {ours[key]:,} tokens, published {theirs[key]:,}")
    return words


def _drawn(decoding: Mapping[str, Any]) -> str:
    """How tokens are chosen."""
    beams = f"{decoding['num_beams']} beams" if decoding["num_beams"] > 1 else ""
    if not decoding["do_sample"]:
        return beams or "greedy"
    parts = [f"{beams or 'responses'} sampled at temperature {decoding['temperature']:g}"]
    parts += [f"top-p {decoding['top_p']:g}"] if decoding["top_p"] < 1 else []
    parts += [f"top-k {decoding['top_k']}"] if decoding["top_k"] else []
    return ", ".join(parts)


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings in which two decodings differ; name and batch size do not change which responses are likely."""
    defaults = asdict(Decoding())
    keys = [key for key in dict.fromkeys([*first, *second]) if key not in _HARMLESS]
    pairs = {key: (first.get(key, defaults.get(key)), second.get(key, defaults.get(key))) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def best_of(values: Mapping[str, float], model: str) -> tuple[str, float]:
    """The published model to name in a line: the one that ran, if it is there, else the one with the highest score."""
    base = model.rstrip("/").rpartition("/")[2].casefold()
    same = [known for known in values if known.casefold() == base]
    name = same[0] if same else max(values, key=lambda known: values[known])
    return name, values[name]


def mean_of_tasks(estimates: Sequence[Mapping[str, Any] | None]) -> tuple[float, float | None] | None:
    """Plain mean of scores on different problems, and its standard error; None if one is missing.

    The tasks have no problem in common, so that their errors are independent and their squares add up.
    """
    if not estimates or any(own is None for own in estimates):
        return None
    there = [own for own in estimates if own is not None]
    errors = [own["standard_error"] for own in there]
    error = None if None in errors else sum(own**2 for own in errors) ** 0.5 / len(there)
    return sum(own["value"] for own in there) / len(there), error
