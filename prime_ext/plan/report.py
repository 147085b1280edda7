# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor --plan``: memory per device and hours of an RL run, without running it.

    python -m prime_ext.doctor --plan --device-memory 80 actor_rollout_ref.model.path=MODEL ...

Composes and checks the configuration first. Needs no GPU and no data, and of models only their ``config.json``. Exits
with 0 when the run fits, 1 when it would not start or not fit, 2 when there is no plan.
"""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.checks import SettingsError
from prime_ext.plan.hours import UTILIZATION
from prime_ext.plan.model_shape import PlanError
from prime_ext.plan.rl import GIB, Plan, plan_run
from prime_ext.preflight.check import check_config, check_files, compose_for_verl

MODEL_KEYS = ("actor_rollout_ref.model.path", "critic.model.path", "prm.model.path", "prm.reference_path")
COLUMNS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "idle", "host", "working")


def main(arguments: list[str]) -> int:
    """Print a plan and return the exit status. Missing files are listed, and are not a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m prime_ext.doctor --plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config-name", default="prime_trainer", help="of prime_ext.train; default: %(default)s")
    parser.add_argument("--device-memory", type=float, metavar="GIB", help="default: the device of this machine")
    parser.add_argument(
        "--mean-tokens", type=int, metavar="N", help="mean length of prompt and response; default: longest"
    )
    parser.add_argument("--model-configs", type=Path, metavar="DIR", help="DIR/NAME/config.json of models not here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table; sizes in bytes")
    parser.add_argument("overrides", nargs="*", help="as for the trainer, key=value")
    options = parser.parse_intermixed_args(arguments)
    problems: list[str] = []
    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config = compose_for_verl(options.config_name, options.overrides)
            problems = check_config(config)
            not_here = [] if problems else check_files(config)
            replace_missing_models(config, options.model_configs)
            size = options.device_memory
            plan = plan_run(config, size * GIB if size else detect_device_bytes(config.trainer), options.mean_tokens)
        except (SettingsError, PlanError) as error:
            print(*(f"prime_ext: {problem}" for problem in [*problems, error]), sep="\n", file=sys.stderr)
            return 2
    plan.warnings.extend(problems)
    print(json.dumps(as_dict(plan, not_here), indent=2) if options.json else render(plan, not_here))
    return 1 if plan.warnings else 0


def replace_missing_models(config: DictConfig, model_configs: Path | None) -> None:
    """Let models that are not on this machine be the folder of the same name in ``model_configs``, in place."""
    for key in MODEL_KEYS:
        path = OmegaConf.select(config, key)
        if model_configs is None or not path or (Path(path).expanduser() / "config.json").is_file():
            continue
        folder = model_configs / Path(path).name
        if (folder / "config.json").is_file():
            OmegaConf.update(config, key, str(folder))


def detect_device_bytes(trainer: Any) -> float | None:
    """Return the memory of the smallest accelerator, or a rank's share of the host's; None where it is unknown."""
    import psutil
    import torch

    if trainer.device == "cpu":
        return psutil.virtual_memory().total / trainer.n_gpus_per_node
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
    return float(min(sizes)) if sizes else None


def as_dict(plan: Plan, not_here: list[str]) -> dict[str, Any]:
    """Return the plan for programs; sizes in bytes."""
    found = asdict(plan)
    del found["engines"], found["passes"]
    name, size = plan.peak
    return found | {"peak": {"phase": name, "bytes": size}, "not_here": not_here}


def render(plan: Plan, not_here: list[str]) -> str:
    """Return the plan as tables."""
    lines = []
    for name, fact in plan.facts.items():
        text = ", ".join(f"{key} {value:,}" for key, value in fact.items()) if isinstance(fact, dict) else fact
        lines.append(f"{name}: {text:,}" if isinstance(text, int) else f"{name}: {text}")
        if name == "devices":
            lines[-1] += " (trainer.nnodes * trainer.n_gpus_per_node)"
    lines += ["", "GiB per device " + "".join(f"{column:>12}" for column in COLUMNS)]
    for part in plan.memory:
        lines.append(f"{part.name:<15}" + "".join(f"{_gib(getattr(part, column)):>12}" for column in COLUMNS))
    lines.append(f"rollout engine: {_gib(plan.rollout['weights'])} weights + {_gib(plan.rollout['cache'])} cache")
    lines += ["", "peak of each part of a step, GiB per device"]
    lines += [f"  {name:<16}{_gib(size):>8}" for name, size in plan.phases.items()]
    lines.append("")
    if plan.seconds:
        lines.append(f"estimated time (prime_ext/plan/hours.py; {UTILIZATION:.0%} of the peak, not measured)")
    for device, seconds in plan.seconds.items():
        lines.append(f"  {device:<6}{seconds:10.{0 if seconds >= 10 else 2}f} s per step")
        if plan.steps is not None:
            hours = plan.steps * seconds / 3600
            lines[-1] += f"{hours:10.1f} h, {hours * plan.facts['devices']:,.0f} device hours"
    size, (name, peak) = plan.device_bytes, plan.peak
    known = "unknown here; give --device-memory GIB" if size is None else f"{size / GIB:.1f} GiB"
    lines.append(f"memory of a device: {known}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if size is not None and not plan.warnings:
        lines.append(f"fits: {peak / size:.0%} of a device at most ({name})")
    return "\n".join([*lines, *(f"not here: {line}" for line in not_here)])


def _gib(size: float) -> str:
    """Format bytes in GiB; small sizes keep one significant digit."""
    return f"{size / GIB:.2f}" if size >= 0.1 * GIB or not size else f"{size / GIB:.1g}"
