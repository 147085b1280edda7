# SPDX-License-Identifier: Apache-2.0
"""Console of a run: a screen about it, then a line for each step; a file gets everything."""

import io
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import VERL_MODES
from prime_ext.methods.changed_keys import method_name
from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.run.metrics_file import metrics_path
from prime_ext.utils.files import write_text

# Shown of a step: label, metrics of which the first that exists is shown, format, unit.
COLUMNS = (
    ("accuracy (all)", ("prime/accuracy/before_filter",), ".3f", ""),
    ("reward (kept)", ("critic/score/mean",), ".3f", ""),
    ("process reward", ("prm/reward_sum/mean",), "+.3g", ""),
    ("PRM pairs right", ("prm/pair_accuracy/before_update",), ".3f", ""),
    ("step score", ("prm/step_score",), ".3f", ""),
    ("steps", ("prime/steps/mean",), ".1f", ""),
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


# What Ray puts before a line of another process.
_PROCESS = re.compile(r"(\x1b\[\d+m)?\([^()]* pid=\d+[^()]*\)(\x1b\[0m)? ")
_OURS = re.compile(r"prime_ext: |step \d|validation after step \d")
_FIRST_STEP = re.compile(r"step \d|validation after step \d")
_TROUBLE = re.compile(r"\b(\w*Error|Traceback|ERROR|CRITICAL|FATAL)\b")


class RunOutput:
    """Copy of all that a run prints, and choice of what reaches the console.

    Until the first step, that is prime_ext's own lines; libraries print hundreds while models are
    loaded. From the first line about training or an error on it is everything. Lines of prime_ext
    appear once, and without the name of the process that printed them.
    """

    def __init__(self, log: TextIO, shows_all: bool = False) -> None:
        self._log = log
        self._shows_all = shows_all
        self._shown: set[str] = set()
        self._lock = Lock()

    def write(self, line: str, console: TextIO) -> None:
        """Write a line, with its end, to the file and perhaps to the console."""
        with self._lock:
            self._log.write(line)
            self._log.flush()
            text = _PROCESS.sub("", line, count=1)
            if _OURS.match(text):
                if text in self._shown:
                    return
                self._shown.add(text)
                line = text
                self._shows_all |= bool(_FIRST_STEP.match(text))
            elif _TROUBLE.search(text):
                self._shows_all = True
            elif not self._shows_all:
                return
            console.write(line)
            console.flush()


class _Stream(io.TextIOBase):
    """Replacement of standard output or error that hands on complete lines."""

    def __init__(self, output: RunOutput, console: TextIO) -> None:
        self._output = output
        self._console = console
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._output.write(f"{line}\n", self._console)
        return len(text)

    def finish(self) -> None:
        """Write a last line without an end."""
        if self._begun:
            self.write("\n")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._console.encoding

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._console.fileno()

    def isatty(self) -> bool:
        return self._console.isatty()


def describe_start(config: DictConfig, folder: Path, log: Path, settings: Path) -> list[str]:
    """Return what a reader should know before a run loads its models, a line for each subject."""

    def name(files: Any) -> str:
        return files if isinstance(files, str) else ", ".join(files or ()) or "none"

    trainer = config.trainer
    rollout = config.actor_rollout_ref.rollout
    rollouts = f"{config.data.train_batch_size} prompts x {rollout.n}"
    steps = trainer.get("total_training_steps")
    length = f"{steps} steps" if steps else f"{trainer.total_epochs} epochs"
    done = find_complete_steps(folder)
    # Read in the sources of vLLM and verl, and not measured.
    lasts = "" if trainer.device == "cpu" else ", an estimated 3 to 6 minutes on GPUs"
    files = {"output": log, "configuration": settings, "metrics": metrics_path(trainer)}
    return [
        method_name(config),
        f"{length} of {rollouts} rollouts; ranks:"
        f" {trainer.nnodes * trainer.n_gpus_per_node} ({trainer.device})",
        f"model: {config.actor_rollout_ref.model.path}",
        f"data: {name(config.data.train_files)}; validation: {name(config.data.val_files)}",
        f"checkpoints: {folder}" + (f", of which the last is of step {done[-1]}" if done else ""),
        "; ".join(f"{kind}: {path}" for kind, path in files.items() if path is not None),
        f"starting Ray, the models and the {rollout.name} servers{lasts}; {log.name} has what they"
        " print meanwhile",
    ]


@contextmanager
def copy_output(config: DictConfig) -> Iterator[None]:
    """Append what this process and, through Ray, those of its run print to a file.

    The file ``console.log`` is in ``trainer.default_local_dir``, next to ``configuration.yaml``.
    The console gets what :class:`RunOutput` chooses; all where no lines of ours are expected.
    """
    folder = Path(config.trainer.default_local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    # A run that only validates may share the folder of one that trains.
    prefix = "validation_" if config.trainer.get("val_only", False) else ""
    path = folder / f"{prefix}console.log"
    settings = folder / f"{prefix}configuration.yaml"
    write_text(settings, OmegaConf.to_yaml(config, resolve=True))
    before = sys.stdout, sys.stderr
    with path.open("a", encoding="utf-8", errors="replace") as log:
        has_lines = logs_to_console(config) and config.trainer.v1.trainer_mode not in VERL_MODES
        output = RunOutput(log, shows_all=not has_lines)
        streams = [_Stream(output, stream) for stream in before]
        sys.stdout, sys.stderr = streams  # type: ignore[assignment]
        try:
            for line in describe_start(config, folder, path, settings):
                print(f"prime_ext: {line}")
            yield
        finally:
            sys.stdout, sys.stderr = before
            for stream in streams:
                stream.finish()
