# SPDX-License-Identifier: Apache-2.0
"""Losses of SmolLM2-135M in bfloat16 and in float32, on the same batches of demonstrations.

    python tests/benchmarks/pretrained_precision.py

These are the first steps of the warm start of the study ``pretrained``; in bfloat16 only products
are. Prints and writes pretrained_precision.json, with the largest difference of two losses.
"""

import harness

from recipes.studies.laboratory import PRECISIONS, SumTask, train_on_demonstrations
from recipes.studies.study_report import read_study


def main() -> None:
    options = harness.parser(__doc__, steps=20).parse_args()
    study = read_study("pretrained")
    task = SumTask(study["model"], **study["task"])
    warm_start = {**study["warm_start"], "steps": options.steps}
    del warm_start["folder"]
    losses = {
        precision: train_on_demonstrations(task, study["model"], **warm_start, kind=kind)[1]
        for precision, kind in PRECISIONS.items()
    }
    differences = [abs(one - other) for one, other in zip(*losses.values(), strict=True)]
    harness.record(options, {"losses": losses, "largest_difference": round(max(differences), 4)})


if __name__ == "__main__":
    main()
