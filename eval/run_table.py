# SPDX-License-Identifier: Apache-2.0
"""The table that a run prints: every metric of every task with its uncertainty and what was published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.run_results import RESULTS

_HEAD = ("task", "metric", "score", "95 % interval", "published")
# Published numbers in a line; all are in the results.
_MOST = 2


def table(results: Mapping[str, Any]) -> str:
    """The tasks of a ``results.json`` as lines of text, in percent."""
    rows = [_HEAD]
    for name, task in results["tasks"].items():
        for number, (metric, estimate) in enumerate(scores(task)):
            rows.append(
                (
                    name if number == 0 else "",
                    metric,
                    _score(estimate),
                    _interval(estimate),
                    _published(task, metric),
                )
            )
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def scores(task: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any] | None]]:
    """Metrics of a task with their estimates; None where nothing could be judged."""
    summary = task["summary"]
    n = summary["samples_per_problem"]
    found = [("accuracy" if n == 1 and metric == "avg@1" else metric, est) for metric, est in summary["scores"].items()]
    for metric, value in (task["choice"] or {}).items():
        # Micro-F1 is the accuracy, so its error is known; that of macro-F1 is not.
        if metric in task["metrics"] and metric != "accuracy":
            mean = summary["scores"][f"avg@{n}"]
            alike = metric == "micro_f1" and mean is not None and abs(mean["value"] - value) < 1e-9
            found.append((metric, mean if alike else {"value": value, "standard_error": None, "low": None}))
    # The base and the plus score of EvalPlus; results of earlier versions have none.
    return [*found, *task.get("parts", {}).items()]


def remarks(results: Mapping[str, Any]) -> list[str]:
    """What to know about the table: failures, truncated responses."""
    lines = []
    for name, task in results["tasks"].items():
        summary = task["summary"]
        if task["failed_responses"]:
            lines.append(
                f"{name}: {task['failed_responses']} responses FAILED and are in no mean; the same command tries them "
                "again"
            )
        if summary["grader_failures"]:
            lines.append(f"{name}: {summary['grader_failures']} responses could not be judged; they are in no mean")
        if summary["truncated"]:
            lines.append(
                f"{name}: {100 * summary['truncated']:.1f} % of the responses were cut off at their longest length"
            )
    return lines


def _score(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return "-"
    error = estimate["standard_error"]
    return f"{100 * estimate['value']:5.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _interval(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None or estimate["low"] is None:
        return ""
    return f"[{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


def _published(task: Mapping[str, Any], metric: str) -> str:
    found: Sequence[tuple[float, str]] = []
    rows = None
    for reference in task["references"]:
        if reference["metric"] == metric:
            found = sorted(((value, model) for model, value in reference["values"].items()), reverse=True)
            rows = reference["rows"]
            break
    if not found:
        return ""
    text = ", ".join(f"{value:.1f} {model}" for value, model in found[:_MOST])
    more = f" (+{len(found) - _MOST})" if len(found) > _MOST else ""
    other = f" on {rows} rows" if rows not in (None, task["summary"]["problems"]) else ""
    return text + more + other


def conclude(results: Mapping[str, Any], folder: Path) -> int:
    """Write the reports, print the table, what to know about it and where the files are.

    Returns:
        The exit code: 1 if responses failed.
    """
    # Draws: matplotlib takes a second to import, which only the end of a run needs.
    from eval.report import write_reports

    reports = write_reports(folder)
    print(table(results))
    for line in remarks(results):
        print(line)
    print(f"results: {folder / RESULTS}; every response and verdict: {folder}/TASK/samples.jsonl")
    print(f"reports: {', '.join(map(str, reports))}")
    return 1 if any(task["failed_responses"] for task in results["tasks"].values()) else 0
