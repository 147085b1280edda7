# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor --plan``: compose a configuration, plan it, and print it."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.plan.errors import PlanError
from prime_ext.plan.estimate import UTILISATION
from prime_ext.plan.plan import GIB, Plan, make_plan

# The last one is that of trainers of a single model.
MODEL_KEYS = (
    "actor_rollout_ref.model.path",
    "critic.model.path",
    "prm.model.path",
    "prm.reference_path",
    "model.path",
)
COLUMNS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "idle", "host", "working")


def run(
    config_name: str,
    overrides: Sequence[str],
    device_gib: float | None = None,
    mean_tokens: int | None = None,
    model_configs: Path | None = None,
    as_json: bool = False,
) -> int:
    """Print the plan of a configuration; 1 if it would not start or not fit, 2 if there is no plan.

    Files that are not here are listed, and are no failure: the run may be planned elsewhere.

    Args:
        config_name: a primary configuration of prime_ext.
        overrides: as for ``prime_ext.train``.
        device_gib: memory of a device; None to look.
        mean_tokens: expected mean length of a prompt and its response; None for the longest.
        model_configs: folder with a ``config.json`` for models that are not here, in a folder of the model's name.
        as_json: print JSON instead of a table.
    """
    from prime_ext.config.checks import SettingsError
    from prime_ext.preflight.check import check_config, check_files, compose_for_verl

    problems: list[str] = []
    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config = compose_for_verl(config_name, list(overrides))
            problems = check_config(config)
            missing = [] if problems else check_files(config)
            if model_configs is not None:
                stand_in(config, model_configs)
            device_bytes = device_gib * GIB if device_gib else detect_device_bytes(config.trainer)
            plan = make_plan(config, device_bytes, mean_tokens)
        except (SettingsError, PlanError) as error:
            for line in [*problems, str(error)]:
                print(f"prime_ext.doctor: {line}", file=sys.stderr)
            return 2
    plan.warnings.extend(problems)
    if as_json:
        print(json.dumps(as_dict(plan) | {"not_here": missing}, indent=2))
    else:
        print("\n".join([render(plan), *(f"not here: {line}" for line in missing)]))
    return 1 if plan.warnings else 0


def stand_in(config: DictConfig, model_configs: Path) -> None:
    """Give models that are not here the folder of their name in ``model_configs``, if there is one."""
    for key in MODEL_KEYS:
        path = OmegaConf.select(config, key)
        if not path or (Path(path).expanduser() / "config.json").is_file():
            continue
        folder = model_configs / Path(path).name
        if (folder / "config.json").is_file():
            OmegaConf.update(config, key, str(folder))


def detect_device_bytes(trainer: Any) -> float | None:
    """Memory of the smallest accelerator here, or the host's, shared by the ranks; None where that is unknown."""
    import psutil
    import torch

    if trainer.device == "cpu":
        return psutil.virtual_memory().total / trainer.n_gpus_per_node
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
    return float(min(sizes)) if sizes else None


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan for programs; sizes in bytes."""
    name, size = plan.peak
    return asdict(plan) | {
        "peak": {"phase": name, "bytes": size},
        "prm_share_of_flops": plan.prm_share,
        "flops": sum(work.flops for work in plan.work),
    }


def render(plan: Plan) -> str:
    """The plan as tables."""
    lines = []
    for name, fact in plan.facts.items():
        text = ", ".join(f"{key} {value:,}" for key, value in fact.items()) if isinstance(fact, dict) else fact
        lines.append(f"{name}: {text:,}" if isinstance(text, int) else f"{name}: {text}")
    lines += ["", "GiB per device " + "".join(f"{column:>12}" for column in COLUMNS)]
    for part in plan.memory:
        values = "".join(f"{getattr(part, column) / GIB:12.2f}" for column in COLUMNS)
        lines.append(f"{part.name:<15}{values}")
    if plan.rollout:
        weights, cache = plan.rollout["weights"] / GIB, plan.rollout["cache"] / GIB
        lines.append(f"rollout engine: {weights:.2f} weights + {cache:.2f} cache")
    lines += ["", "peak of each part of a step, GiB per device"]
    lines += [f"  {name:<16}{size / GIB:8.2f}" for name, size in plan.phases.items()]
    total = sum(work.flops for work in plan.work)
    lines += ["", f"FLOPs per step: {total:.3g} at most (responses of full length)"]
    for work in plan.work:
        times_n = f"{work.flops_per_token_and_weight:5.1f} N"
        lines.append(f"  {work.name:<30}{times_n}{work.flops:12.3g}{work.flops / total:7.1%}")
    if plan.rollout:
        lines.append(f"  share of the PRM{plan.prm_share:38.1%}")
    lines += [*_forward(plan), "", *_hours(plan), *_storage(plan), ""]
    size = plan.device_bytes
    known = "unknown here; give --device-memory GIB" if size is None else f"{size / GIB:.1f} GiB"
    lines.append(f"memory of a device: {known}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if size is not None and not plan.warnings:
        lines.append(f"fits: {plan.peak[1] / size:.0%} of a device at most ({plan.peak[0]})")
    return "\n".join(lines)


def _forward(plan: Plan) -> list[str]:
    lines = []
    for part in plan.forward:
        passes, training = f"{part.passes} of {part.tokens:,} tokens", f"{part.passes_of_training} with training's"
        line = f"  {part.name:<16}{passes} ({training} {part.training_tokens:,})"
        if part.copied:
            copied, before = (count * part.copied / GIB for count in (part.passes, part.passes_of_training))
            line += f"; copies {copied:.0f} GiB of weights from the host ({before:.0f})"
        lines.append(line)
    return ["", "passes without gradients per step and device", *lines] if lines else []


def _hours(plan: Plan) -> list[str]:
    if not plan.hours:
        return []
    lines = [f"estimated time (prime_ext/plan/estimate.py; {UTILISATION:.0%} of the peak, not measured)"]
    for hours in plan.hours:
        of_run = "" if hours.run_hours is None else f"{hours.run_hours:10.1f} h, {hours.device_hours:,.0f} device hours"
        lines.append(f"  {hours.device:<6}{hours.step_seconds:10.0f} s per step{of_run}")
    return lines


def _storage(plan: Plan) -> list[str]:
    one = sum(plan.checkpoint.values())
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in plan.checkpoint.items())
    if plan.kept == 0:
        return ["checkpoints: none (trainer.save_freq)"]
    kept = "all are kept" if plan.kept is None else f"{plan.kept} at a time: {plan.kept * one / GIB:.1f} GiB"
    return [f"checkpoint: {one / GIB:.1f} GiB ({parts}); {kept}"]
