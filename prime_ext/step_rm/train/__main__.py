# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.step_rm.train``: train a step reward model, with or without torchrun.

    python -m prime_ext.step_rm.train model.path=google-bert/bert-large-uncased data.files=steps.parquet \\
        trainer.output_dir=outputs/step_rm

Words are overrides of prime_ext/config/step_rm.yaml. Exits with 2 and one line when something cannot work, and with 130
when interrupted; the same command continues from the last checkpoint. With ``PRIME_EXT_CHECKS=default`` a finished run
checks itself, and exits with 1 if something is wrong (:mod:`prime_ext.run.check_metrics`).
"""

import math
import os
import sys
from pathlib import Path
from typing import Any

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.run.check_metrics import RunChecks, checks_requested
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.train.settings import METRICS_FILE, StepRMSettings
from prime_ext.utils.run_store import command


def compose(overrides: list[str]) -> StepRMSettings:
    """Compose and check the settings. Raises ``SettingsError``."""
    from omegaconf import OmegaConf

    config = compose_config("step_rm", overrides)
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise SettingsError(f"{missing[0]} is missing; give {missing[0]}=...")
    values: Any = OmegaConf.to_container(config)
    return StepRMSettings.from_mapping(values)


def checks_of(settings: StepRMSettings) -> RunChecks:
    """Return what every healthy run leaves: its last epoch, unless it may stop early, and finite numbers."""
    # More than all epochs but the last.
    begun = math.nextafter(max(0.0, settings.optim.epochs - 1), math.inf)
    reached = {} if settings.trainer.patience else {"epoch": begun}
    path = Path(settings.trainer.output_dir).expanduser() / METRICS_FILE
    return RunChecks(path, ("train_loss", "eval_loss"), reached, without_gaps=False)


def print_summary(results: dict[str, Any], output_dir: str) -> None:
    print(f"best step {results['best_step']} of {results['steps']}, temperature {results['temperature']:.4f}")
    for name in ("validation", "test"):
        if part := results.get(name):
            accuracy = f"accuracy {part['accuracy']:.4f} (majority {part['majority']:.4f})"
            print(f"{name}: {part['steps']} steps, {accuracy}, macro-F1 {part['macro_f1']:.4f}")
    print(f"written to {output_dir}: model/, results.json, metrics.jsonl")


@command("prime_ext", SettingsError, StepRMError)
def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    first = os.environ.get("RANK", "0") == "0"
    settings = compose(words)
    checks = checks_of(settings) if first and checks_requested() else None
    from prime_ext.step_rm.train.run import train

    results = train(settings)
    if first:
        print_summary(results, settings.trainer.output_dir)
    if checks is not None:
        checks.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
