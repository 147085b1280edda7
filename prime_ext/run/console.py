# SPDX-License-Identifier: Apache-2.0
"""Output of the logger ``console``: a line for each step and validation, not every metric."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from omegaconf import DictConfig

# Shown of a step: label, metrics of which the first that exists is shown, format, unit.
COLUMNS = (
    ("accuracy (all)", ("prime/accuracy/before_filter", "pspo/acc"), ".3f", ""),
    ("reward (kept)", ("critic/score/mean",), ".3f", ""),
    ("process reward", ("prm/reward_sum/mean",), "+.3g", ""),
    ("PRM pairs right", ("prm/pair_accuracy/before_update",), ".3f", ""),
    ("step score", ("pspo/step_score",), ".3f", ""),
    ("steps", ("pspo/n_steps/mean",), ".1f", ""),
    ("length", ("response_length/mean",), ".0f", " tokens"),
    ("cut off", ("prime/response_length/cut_off",), ".1%", ""),
)
SECONDS = "timing_s/step"
# The time left is measured on the latest steps: the first is slow, and lengths of responses change.
RECENT = 20


def logs_to_console(config: DictConfig) -> bool:
    """Return whether ``console`` is among the loggers of a run."""
    return "console" in (config.trainer.get("logger") or ())


class ConsoleLines:
    """Replacement of verl's console logger; the run begins when this object is made."""

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic):
        self._total_steps = total_steps
        self._clock = clock
        self._ends = deque([clock()], maxlen=RECENT + 1)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Print a step's line and its validation's; step 0 is the validation before training."""
        if SECONDS in data:
            self._ends.append(self._clock())
            print(self._format_step(data, step), flush=True)
        scores = {
            name.removeprefix("val-core/"): data[name]
            for name in data
            if name.startswith("val-core/")
        }
        if scores:
            line = "  ".join(
                f"{' '.join(name.rsplit('/', 2))} {value:.3f}" for name, value in scores.items()
            )
            print(f"validation after step {step}  {line}", flush=True)

    def _format_step(self, data: Mapping[str, Any], step: int) -> str:
        parts = [f"step {step}/{self._total_steps}"]
        for label, names, form, unit in COLUMNS:
            value = next((float(data[name]) for name in names if name in data), math.nan)
            if math.isfinite(value):
                parts.append(f"{label} {value:{form}}{unit}")
        parts.append(f"{data[SECONDS]:.1f} s")
        if step < self._total_steps:
            seconds = (
                (self._total_steps - step)
                * (self._ends[-1] - self._ends[0])
                / (len(self._ends) - 1)
            )
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        return "  ".join(parts)
