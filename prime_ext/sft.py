# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.sft``: verl's own SFT trainer, after all checks that are possible.

    torchrun --standalone --nproc-per-node 8 -m prime_ext.sft model.path=MODEL data.train_files=DATA.parquet

Words are overrides of verl's ``sft_trainer_engine``. What an earlier start wrote to the file of verl's ``file``
logger is kept (:mod:`prime_ext.run.metrics_file`). Exits with 2 and one line per problem when the configuration
cannot work. With ``PRIME_EXT_CHECKS`` set (:mod:`prime_ext.run.check_metrics`) a run that has ended checks its
metrics, and exits with 1 if they are not as they should be.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.preflight.sft import check_sft
from prime_ext.run.check_metrics import ConditionError, RunChecks
from prime_ext.run.metrics_file import metrics_path, put_aside
from prime_ext.run.quiet import set_levels

if TYPE_CHECKING:
    from omegaconf import DictConfig


def default_conditions(config: "DictConfig") -> list[str]:
    """What every healthy run meets: all its steps, logged without a gap, and finite numbers."""
    steps = config.trainer.total_training_steps
    wanted = [] if steps is None else [f"last(step) >= {steps}"]
    return [*wanted, "complete(step)", "finite(train/loss)", "finite(train/grad_norm)"]


def main() -> None:
    """Check, then hand over to verl. All files are written by the process with the rank 0."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    set_levels()
    first = int(os.environ.get("RANK", "0")) == 0
    checks = None
    try:
        config = compose_config(SFT_CONFIG, sys.argv[1:])
        problems = check_sft(config)
        trainer = config.trainer
        path = metrics_path(trainer.logger, trainer.project_name, trainer.experiment_name)
        if first:
            # The last step is always saved.
            checks = RunChecks.from_environment(path, default_conditions(config), Path(trainer.default_local_dir))
    except (SettingsError, ConditionError) as error:
        problems = [str(error)]
    if problems:
        for problem in problems if first else []:
            print(f"prime_ext: {problem}", file=sys.stderr)
        raise SystemExit(2)
    if first and path is not None:
        put_aside(path)

    from verl.trainer.sft_trainer import main as verl_main

    verl_main()
    if checks is not None:
        checks.finish()


if __name__ == "__main__":
    main()
