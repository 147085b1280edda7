# SPDX-License-Identifier: Apache-2.0
"""Metrics of every training step of the ablations, small enough to keep.

    python -m recipes.ablations.curves --work-dir outputs/ablations

reads ``<work-dir>/<suite>/runs/<variant>_seed<k>/metrics.jsonl`` of the runs that have a result, and writes
``results/<suite>_steps.jsonl``: a line for each run, with one value for each step and metric, four significant digits.
"""

import argparse
import sys
from pathlib import Path

from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import write_json_lines

METRICS = (
    "prime/accuracy/before_filter",
    "prime/filter/examined",
    "prime/filter/kept_fraction",
    "prime/gate/value",
    "prime/process/normalizer",
    "prime/process/return_std_over_outcome",
    "prm/grad_norm",
    "prm/loss",
    "prm/pair_accuracy/before_update",
    "prm/reward_sum/correct",
    "prm/reward_sum/wrong",
    "prm/reward_sum/std",
    "actor/entropy",
    "actor/grad_norm",
    "response_length/mean",
)


def curves_of(run: Path) -> dict[str, list[float | None]]:
    """The metrics of a run, in the order of its steps; those that it does not have are left out."""
    rows = [row for row in read_metrics(run / "metrics.jsonl").values() if "timing_s/step" in row]
    found = {name: [_short(row.get(name)) for row in rows] for name in METRICS}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def main() -> None:
    # They bring torch, which those who only read the curves do not need.
    from recipes.ablations.report import read_results
    from recipes.ablations.run import RESULTS
    from recipes.ablations.suites import SUITES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-dir", type=Path, default=Path("outputs/ablations"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name, suite in SUITES.items():
        done = read_results(arguments.results / name, suite)
        folder = arguments.work_dir / name / "runs"
        runs = [(key, seed, folder / f"{key}_seed{seed}") for key in done for seed in done[key]]
        missing = [run for _, _, run in runs if not run.is_dir()]
        if missing:
            sys.exit(f"{missing[0]} is not there, as {len(missing) - 1} more of the runs that have a result")
        rows = [{"variant": key, "seed": seed, "metrics": curves_of(run)} for key, seed, run in runs]
        write_json_lines(arguments.results / f"{name}_steps.jsonl", rows)


if __name__ == "__main__":
    main()
