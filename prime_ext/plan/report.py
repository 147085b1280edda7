# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor --plan``: memory per device, FLOPs and time of a step, disk space; without running it.

    python -m prime_ext.doctor --plan --device-memory 80 actor_rollout_ref.model.path=MODEL ...
    python -m prime_ext.doctor --plan --config-name sft_trainer_engine model.path=MODEL ...

The configuration is composed and checked first. Needs no GPU, no data and of models only their ``config.json``. Exits
with 0 when the run fits, 1 when it would not start or not fit, 2 when there is no plan.
"""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.plan.estimate import UTILISATION
from prime_ext.plan.model_shape import PlanError
from prime_ext.plan.plan import GIB, Known, Plan, make_plan
from prime_ext.plan.rl import read_rl
from prime_ext.plan.supervised import STEP_RM_CONFIG, check_step_rm, read_offline, read_sft, read_step_rm
from prime_ext.preflight.sft import check_sft

OFFLINE_CONFIG = "offline_prm"
SUPERVISED = (SFT_CONFIG, STEP_RM_CONFIG)
# Of the other names, read_rl.
READERS = {OFFLINE_CONFIG: read_offline, SFT_CONFIG: read_sft, STEP_RM_CONFIG: read_step_rm}
# The last one is that of trainers of a single model.
MODEL_KEYS = ("actor_rollout_ref.model.path", "critic.model.path", "prm.model.path", "prm.reference_path", "model.path")
COLUMNS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "idle", "host", "working")
# Where models take turns.
WAITING = ("idle", "host")


# ---- the command ---------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Print a plan; returns the exit status. Files that are not here are listed, and are no failure."""
    parser = argparse.ArgumentParser(
        prog="python -m prime_ext.doctor --plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config-name",
        default="prime_trainer",
        help=f"of prime_ext.train, or {OFFLINE_CONFIG}, {SFT_CONFIG}, {STEP_RM_CONFIG}; default: %(default)s",
    )
    parser.add_argument("--device-memory", type=float, metavar="GIB", help="default: the device found here")
    for name, default, text in (
        ("devices", 1, f"of {OFFLINE_CONFIG} and {STEP_RM_CONFIG}; default: %(default)s"),
        ("rows", None, "training rows of supervised runs; default: the files'"),
        ("prompts", None, f"of {OFFLINE_CONFIG}, for the number of steps"),
        ("responses", 8, "of such a prompt; default: %(default)s"),
        ("mean-tokens", None, "mean length of prompt and response, or of a row; default: longest"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    parser.add_argument("--model-configs", type=Path, metavar="DIR", help="DIR/NAME/config.json of models not here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table; sizes in bytes")
    parser.add_argument("overrides", nargs="*", help="as for the trainer, key=value")
    options = parser.parse_intermixed_args(arguments)
    name, size = options.config_name, options.device_memory
    problems: list[str] = []
    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config, problems, not_here = _compose(name, options.overrides)
            if problems and name in SUPERVISED:
                print(*(f"prime_ext: {problem}" for problem in problems), sep="\n", file=sys.stderr)
                return 1
            replaced = stand_in(config, options.model_configs)
            if name in SUPERVISED:
                not_here = [f"model.path: {path}; its sizes are from {folder}" for path, folder in replaced]
            device_bytes = size * GIB if size else detect_device_bytes(config.trainer)
            more = (options.mean_tokens, options.devices, options.rows, options.prompts, options.responses)
            run = READERS.get(name, read_rl)(config, Known(device_bytes, *more))
            plan = make_plan(replace(run, not_here=[*not_here, *run.not_here]))
        except (SettingsError, PlanError) as error:
            print(*(f"prime_ext: {problem}" for problem in [*problems, error]), sep="\n", file=sys.stderr)
            return 2
    plan.warnings.extend(problems)
    print(json.dumps(as_dict(plan), indent=2) if options.json else render(plan))
    return 1 if plan.warnings else 0


def _compose(name: str, overrides: list[str]) -> tuple[DictConfig, list[str], list[str]]:
    """The configuration, what is wrong with it, and what it needs and is not here; data of supervised runs are not
    among that. Raises ``SettingsError``."""
    if name == OFFLINE_CONFIG:
        from prime_ext.offline_prm.__main__ import compose

        # A plan is for accelerators unless the overrides say otherwise.
        config, settings = compose(["trainer.device=cuda", *overrides])
        paths = (*settings.data.train_paths, *settings.data.val_paths)
        return config, [], [path for path in paths if not Path(path).exists()]
    if name in SUPERVISED:
        config = compose_config(name, overrides)
        return config, check_sft(config) if name == SFT_CONFIG else check_step_rm(config), []
    from prime_ext.preflight.check import check_config, check_files, compose_for_verl

    config = compose_for_verl(name, overrides)
    problems = check_config(config)
    return config, problems, [] if problems else check_files(config)


def stand_in(config: DictConfig, model_configs: Path | None) -> list[tuple[str, str]]:
    """Give models that are not here the folder of their name in ``model_configs``; returns old and new paths."""
    found: list[tuple[str, str]] = []
    for key in MODEL_KEYS:
        path = OmegaConf.select(config, key)
        if model_configs is None or not path or (Path(path).expanduser() / "config.json").is_file():
            continue
        folder = model_configs / Path(path).name
        if (folder / "config.json").is_file():
            OmegaConf.update(config, key, str(folder))
            found.append((str(path), str(folder)))
    return found


def detect_device_bytes(trainer: Any) -> float | None:
    """Memory of the smallest accelerator here, or the host's, shared by the ranks; None where that is unknown."""
    import psutil
    import torch

    if trainer.device == "cpu":
        return psutil.virtual_memory().total / trainer.get("n_gpus_per_node", 1)
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
    return float(min(sizes)) if sizes else None


# ---- what it prints ------------------------------------------------------------------------------------------------


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan for programs; sizes in bytes."""
    run, (name, size) = plan.run, plan.peak
    computed = {key: value for key, value in asdict(plan).items() if key != "run"}
    of_run = ("facts", "rollout", "forward", "tokens", "steps", "checkpoint", "kept", "device_bytes", "not_here")
    return computed | {
        **{key: getattr(run, key) for key in of_run},
        "forward": [asdict(passes) for passes in run.forward],
        "peak": {"phase": name, "bytes": size},
        "prm_share_of_flops": plan.prm_share,
        "flops": plan.flops,
    }


def render(plan: Plan) -> str:
    """The plan as tables; of a run of one model, without those of the models that take turns."""
    run, alone = plan.run, len(plan.phases) == 1
    lines = []
    for name, fact in run.facts.items():
        text = ", ".join(f"{key} {value:,}" for key, value in fact.items()) if isinstance(fact, dict) else fact
        lines.append(f"{name}: {text:,}" if isinstance(text, int) else f"{name}: {text}")
        if name == "devices" and run.rollout:
            lines[-1] += " (trainer.nnodes * trainer.n_gpus_per_node)"
    columns = [column for column in COLUMNS if not alone or column not in WAITING]
    lines += ["", "GiB per device " + "".join(f"{column:>12}" for column in columns)]
    for part in plan.memory:
        lines.append(f"{part.name:<15}" + "".join(f"{_gib(getattr(part, column)):>12}" for column in columns))
    lines += _alone(plan) if alone else _in_turn(plan)
    checkpoint = sum(run.checkpoint.values())
    parts = "" if alone else f" ({', '.join(f'{name} {_gib(size)}' for name, size in run.checkpoint.items())})"
    kept = "all are kept" if run.kept is None else f"{run.kept} at a time: {_gib(run.kept * checkpoint)} GiB"
    saved = f"checkpoint: {_gib(checkpoint)} GiB{parts}; {kept}"
    lines += ["checkpoints: none (trainer.save_freq)" if run.kept == 0 else saved, ""]
    size, (name, peak) = run.device_bytes, plan.peak
    known = "unknown here; give --device-memory GIB" if size is None else f"{size / GIB:.1f} GiB"
    lines.append(f"memory of a device: {known}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if size is not None and not plan.warnings:
        lines.append(f"fits: {peak / size:.0%} of a device at most{'' if alone else f' ({name})'}")
    return "\n".join([*lines, *(f"not here: {line}" for line in run.not_here)])


def _gib(size: float) -> str:
    """Bytes in GiB; what is small keeps a digit that says something."""
    return f"{size / GIB:.2f}" if size >= 0.1 * GIB or not size else f"{size / GIB:.1g}"


def _alone(plan: Plan) -> list[str]:
    """Peak, FLOPs and time of one model, which is trained in every step and nothing else."""
    run = plan.run
    lines = [f"peak: {_gib(plan.peak[1])} GiB per device; {_gib(plan.memory[0].host)} wait on the host", ""]
    lines.append(f"per step: {run.tokens:,} tokens, {plan.flops:.3g} FLOPs")
    if plan.hours:
        lines.append(f"estimated time ({UTILISATION:.0%} of the peak, not measured)")
    for hours in plan.hours:
        speed = f"{hours.step_seconds:9.2f} s per step{hours.step_seconds / run.tokens * 1e6:9.1f} s per million tokens"
        lines.append(f"  {hours.device:<6}{speed}")
        if hours.run_hours is not None:
            lines[-1] += f"{hours.run_hours:9.1f} h for {run.steps:,} steps, {hours.device_hours:,.0f} device hours"
    return lines


def _in_turn(plan: Plan) -> list[str]:
    """Peak, FLOPs and time of a step in which several models take turns."""
    run, lines = plan.run, []
    if run.rollout:
        weights, cache = _gib(run.rollout["weights"]), _gib(run.rollout["cache"])
        lines.append(f"rollout engine: {weights} weights + {cache} cache")
    lines += ["", "peak of each part of a step, GiB per device"]
    lines += [f"  {name:<16}{_gib(size):>8}" for name, size in plan.phases.items()]
    lines += ["", f"FLOPs per step: {plan.flops:.3g} at most (responses of full length)"]
    for work in plan.work:
        times_n = f"{work.flops_per_token_and_weight:5.1f} N"
        lines.append(f"  {work.name:<30}{times_n}{work.flops:12.3g}{work.flops / plan.flops:7.1%}")
    if run.rollout:
        lines.append(f"  share of the PRM{plan.prm_share:38.1%}")
    if run.forward:
        lines += ["", "passes without gradients per step and device"]
    for part in run.forward:
        passes, training = f"{part.passes} of {part.tokens:,} tokens", f"{part.passes_of_training} with training's"
        line = f"  {part.name:<16}{passes} ({training} {part.training_tokens:,})"
        if part.copied:
            copied, before = (count * part.copied / GIB for count in (part.passes, part.passes_of_training))
            line += f"; copies {copied:.0f} GiB of weights from the host ({before:.0f})"
        lines.append(line)
    lines.append("")
    if plan.hours:
        peak = f"{UTILISATION:.0%} of the peak, not measured"
        lines.append(f"estimated time (prime_ext/plan/estimate.py; {peak})")
    for hours in plan.hours:
        digits = 0 if hours.step_seconds >= 10 else 2
        lines.append(f"  {hours.device:<6}{hours.step_seconds:10.{digits}f} s per step")
        if hours.run_hours is not None:
            lines[-1] += f"{hours.run_hours:10.1f} h, {hours.device_hours:,.0f} device hours"
    return lines
