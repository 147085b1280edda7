# SPDX-License-Identifier: Apache-2.0
"""What the logger ``console`` prints: one line for each step, each validation and each checkpoint.

verl prints every metric in one line of several thousand characters, beside a progress bar and dictionaries of
validation metrics. ``trainer.console=verl`` leaves it at that; all metrics are in the other loggers in any case.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from omegaconf import DictConfig, ListConfig

from prime_ext.run.quiet import silent

STYLES = ("lines", "verl")
# What is shown of a step: label, the metrics that may hold it, format, unit. The first that is there is shown.
COLUMNS = (
    ("accuracy", ("prime/accuracy/before_filter", "pspo/acc"), ".3f", ""),
    ("reward", ("critic/score/mean",), ".3f", ""),
    ("process reward", ("prm/reward_sum/mean",), "+.3g", ""),
    ("PRM pairs right", ("prm/pair_accuracy/before_update",), ".3f", ""),
    ("step score", ("pspo/step_score",), ".3f", ""),
    ("steps", ("pspo/n_steps/mean",), ".1f", ""),
    ("length", ("response_length/mean",), ".0f", " tokens"),
    ("cut off", ("prime/response_length/cut_off",), ".1%", ""),
)
SECONDS = "timing_s/step"
# The first step is slow, and speed changes with the length of responses: steps that the time left is measured on.
RECENT = 20


def prints_lines(config: DictConfig) -> bool:
    """Whether a run prints lines: ``console`` is among its loggers, and ``trainer.console`` is not ``verl``."""
    loggers = config.trainer.get("logger", None) or []
    names = list(loggers) if isinstance(loggers, list | tuple | ListConfig) else [loggers]
    return "console" in names and config.trainer.get("console", "lines") == "lines"


def duration(seconds: float) -> str:
    """Seconds in the two largest units that say something: ``48 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


class ConsoleLines:
    """Stands in for verl's console logger.

    Args:
        total_steps: steps of the run.
        clock: seconds; the run begins when this object is made.
    """

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic):
        self._total_steps, self._clock = total_steps, clock
        self._ends = deque([clock()], maxlen=RECENT + 1)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Print what verl logs of a step: its line, and that of the validation behind it.

        Args:
            data: metrics by name.
            step: the step, from 1; 0 is the validation before training.
        """
        if SECONDS in data:
            self._ends.append(self._clock())
            print(self._step_line(data, step), flush=True)
        scores = [
            f"{' '.join(name.removeprefix('val-core/').rsplit('/', 2))} {value:.3f}"
            for name, value in data.items()
            if name.startswith("val-core/")
        ]
        if scores:
            print(f"validation after step {step}  " + "  ".join(scores), flush=True)

    def _step_line(self, data: Mapping[str, Any], step: int) -> str:
        parts = [f"step {step}/{self._total_steps}"]
        for label, names, form, unit in COLUMNS:
            value = next((float(data[name]) for name in names if name in data), math.nan)
            if math.isfinite(value):
                parts.append(f"{label} {value:{form}}{unit}")
        parts.append(f"{data[SECONDS]:.1f} s")
        left = (self._total_steps - step) * (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return "  ".join([*parts, f"{duration(left)} left"] if step < self._total_steps else parts)


@contextmanager
def lines_in(module: Any, console: ConsoleLines) -> Iterator[None]:
    """Within this context a run of verl's trainer prints the lines of ``console``, and nothing of its own.

    Args:
        module: ``verl.trainer.ppo.v1.trainer_base``, whose loop prints.
        console: replaces verl's console logger; all others are verl's.
    """
    make_tracking, bar, pretty = module.Tracking, module.tqdm, module.pprint

    def tracking(*arguments: Any, **keywords: Any) -> Any:
        made = make_tracking(*arguments, **keywords)
        made.logger["console"] = console
        return made

    module.Tracking, module.tqdm, module.pprint = tracking, partial(bar, disable=True), silent
    try:
        yield
    finally:
        module.Tracking, module.tqdm, module.pprint = make_tracking, bar, pretty
