# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.train``: verl's main with PRIME's configuration, after all possible checks.

Takes the same overrides as ``python -m verl.trainer.main_ppo``. ``--config-name=prime_trainer_cpu``
trains without an accelerator. Exits with 2 and one line per problem when the configuration cannot
work; ``--check`` does no more than that. ``RAY_ADDRESS`` names a running cluster.

Until the first step the console has only prime_ext's lines and errors. What all processes print is
in ``console.log`` in ``trainer.default_local_dir``, next to ``configuration.yaml``.
"""

import io
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError

from prime_ext.config.asynchronous import VERL_MODES
from prime_ext.config.checks import SettingsError, refuse
from prime_ext.config.compose import CONFIG_MODULE
from prime_ext.config.modules import import_for_verl
from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.run.console import copy_output
from prime_ext.run.metrics_file import metrics_path, put_aside
from prime_ext.run.ray_cluster import check_cluster, check_ray, environment_words, summarize_error
from prime_ext.run.resume import explain_refusal, find_checkpoint, read_identity
from prime_ext.upstream import load_main
from prime_ext.utils.run_store import RunError, RunLock


def main() -> None:
    """Check, then hand over to verl."""
    from hydra._internal.utils import get_args_parser

    # verl and its store of rollouts report warnings only, here and in the processes of the run.
    for name in ("VERL_LOGGING_LEVEL", "TQ_LOGGING_LEVEL"):
        os.environ.setdefault(name, "WARNING")
    # Ray prints the lines of the run's processes here; in a file, too, they should appear at once.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    only_check = "--check" in sys.argv
    sys.argv[1:] = [word for word in sys.argv[1:] if word != "--check"]
    args, unknown = get_args_parser().parse_known_args()
    if args.help:
        print(__doc__)
        return
    if unknown:
        raise SystemExit(
            f"prime_ext.train: unknown option {unknown[0]}; overrides are written key=value"
        )
    if args.multirun:
        raise SystemExit(
            "prime_ext.train: --multirun is not for training, whose runs need a folder and a start"
            " each; start them one by one, as in `for lr in 1e-6 2e-6; do ...; done`"
        )
    name = args.config_name or "prime_trainer"
    config = None
    if not (args.cfg or args.config_path or args.hydra_help or args.info):
        config = prepare_start(name, args.overrides, only_check)
    if only_check:
        print(
            "prime_ext: nothing is wrong"
            if config is not None
            else "prime_ext: --check goes with overrides only"
        )
        raise SystemExit(0 if config is not None else 2)
    # Loud: an error in the plug-in or in a user's module stops the run in every process.
    import_for_verl(())
    words = [] if config is None else environment_words(config, os.environ)
    # Hydra wants all overrides in one place.
    end = sys.argv.index(args.overrides[-1]) + 1 if args.overrides else len(sys.argv)
    sys.argv[end:end] = words
    if args.config_name is None:
        sys.argv.insert(1, f"--config-name={name}")
    if args.config_path is None:
        sys.argv.insert(1, f"--config-path=pkg://{CONFIG_MODULE}")

    verl_main = load_main()
    with nullcontext() if config is None else copy_output(config):
        try:
            verl_main()
        except (SystemExit, Exception) as ended:
            failed = not (isinstance(ended, SystemExit) and ended.code in (None, 0))
            if config is not None and failed:
                # Hydra prints the error and exits.
                error = ended.__context__ if isinstance(ended, SystemExit) else ended
                print(
                    f"prime_ext: {failure_message(Path(config.trainer.default_local_dir), error)}",
                    file=sys.stderr,
                )
            raise


def prepare_start(name: str, overrides: list[str], only_check: bool = False) -> DictConfig:
    """Return the configuration of a run that may start; end the process if it may not."""
    from prime_ext.preflight.check import check_config, check_files, compose_for_verl

    try:
        config = compose_for_verl(name, overrides)
        # They import torch.
        from prime_ext.preflight.gpu_checks import check_gpus
        from prime_ext.preflight.logger_checks import check_loggers

        path = metrics_path(config.trainer)
        # A plan makes the first and the last of these checks too, on any machine.
        problems = check_config(config)
        try:
            for check in (check_ray, check_cluster, check_gpus, check_loggers, check_files):
                problems.extend(check(config))
        except ConfigAttributeError:
            # A key that check_config has missed already.
            refuse(dict.fromkeys(problems))
            raise
        if path is not None and (foreign := check_metrics_file(config, path)):
            problems.append(foreign)
        refuse(dict.fromkeys(problems))
        # Before anything of a run that is under way is touched.
        if problem := check_run_folder(config, only_check) or explain_refusal(
            config, read_identity(config), find_checkpoint(config)
        ):
            raise RunError(problem)
    except (SettingsError, RunError) as error:
        lines = error.problems if isinstance(error, SettingsError) else [str(error)]
        print(*(f"prime_ext: {line}" for line in lines), sep="\n", file=sys.stderr)
        raise SystemExit(2) from None
    # verl's own trainers begin the file anew at every start.
    if path is not None and config.trainer.v1.trainer_mode in VERL_MODES and not only_check:
        put_aside(path)
    return config


def check_metrics_file(config: DictConfig, path: Path) -> str:
    """Return an error if the file has metrics of a run in another folder; else the empty text."""
    folder = Path(config.trainer.default_local_dir)
    if (
        config.trainer.get("val_only", False)
        or folder.is_dir()
        or not path.is_file()
        or path.stat().st_size == 0
    ):
        return ""
    remedy = "set another trainer.experiment_name or VERL_FILE_LOGGER_PATH, or remove the file"
    return (
        f"{path} has the metrics of a run in another folder than"
        f" trainer.default_local_dir={folder}; {remedy}"
    )


def check_run_folder(config: DictConfig, only_check: bool = False) -> str:
    """Return why no run may start in its folder (made unless ``only_check``); empty if it may."""
    folder = Path(config.trainer.default_local_dir)
    if config.trainer.get("val_only", False) or (only_check and not folder.exists()):
        return ""
    try:
        lock = RunLock(folder, "trainer.default_local_dir")
        lock.acquire()
        # The trainer takes it for good, in a process of its own.
        lock.release()
    except (RunError, OSError) as error:
        return str(error)
    return ""


def failure_message(checkpoints: Path, error: BaseException | None) -> str:
    """Return the last line of a run whose checkpoints are in ``trainer.default_local_dir``."""
    parts = [
        f"the run failed with {summarize_error(error)}" if error is not None else "the run failed"
    ]
    folder = next(parent for parent in (checkpoints, *checkpoints.parents) if parent.exists())
    usage = shutil.disk_usage(folder)
    # Ray and torch report a full disk in many ways, and seldom by its name.
    if usage.free < 0.01 * usage.total:
        sizes = f"{usage.free / 1e6:.1f} of {usage.total / 1e6:.0f} MB left"
        parts.append(f"the disk of {folder} is full ({sizes})")
    if steps := find_complete_steps(checkpoints):
        newest = f"{checkpoints}/global_step_{steps[-1]}"
        parts.append(
            f"the newest whole checkpoint is {newest}, and the same command goes on from there"
        )
    else:
        parts.append(f"nothing was saved in {checkpoints}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
