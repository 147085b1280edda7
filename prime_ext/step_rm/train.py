# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.step_rm.train``: train a step reward model, with or without torchrun.

    python -m prime_ext.step_rm.train model.path=google-bert/bert-large-uncased \\
        data.files=steps.parquet \\
        trainer.output_dir=outputs/step_rm

Words are overrides of prime_ext/config/step_rm.yaml. ``--check`` makes all checks and starts
nothing. Exits with 2 and one line when something
cannot work, and with 130 when interrupted; the same command continues from the last checkpoint.
"""

import sys
from typing import Any

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.run.training_runs import check_folder, is_first_rank, read_settings, run_program
from prime_ext.step_rm.train_settings import StepRMSettings
from prime_ext.utils.run_store import command


def compose(overrides: list[str]) -> StepRMSettings:
    """Compose and check the settings. Raises ``SettingsError``."""
    settings = read_settings(StepRMSettings, compose_config("step_rm", overrides))
    check_folder("model.path", settings.model.path)
    return settings


def print_summary(results: dict[str, Any], output_dir: str) -> None:
    print(
        f"best step {results['best_step']} of {results['steps']}, temperature"
        f" {results['temperature']:.4f}"
    )
    for name in ("validation", "test"):
        if metrics := results.get(name):
            accuracy = f"accuracy {metrics['accuracy']:.4f} (majority {metrics['majority']:.4f})"
            print(
                f"{name}: {metrics['steps']} steps, {accuracy}, macro-F1 {metrics['macro_f1']:.4f}"
            )
    print(f"written to {output_dir}: model/, results.json, metrics.jsonl")


def run(words: list[str]) -> None:
    settings = compose([word for word in words if word != "--check"])
    from prime_ext.step_rm.training import check, train

    if "--check" in words:
        check(settings)
        return
    results = train(settings)
    if is_first_rank():
        print_summary(results, settings.trainer.output_dir)


@command("prime_ext", SettingsError)
def main(arguments: list[str] | None = None) -> int:
    return run_program(arguments, __doc__ or "", run)


if __name__ == "__main__":
    sys.exit(main())
