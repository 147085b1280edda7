# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""``python -m prime_ext.doctor --plan``: compose a configuration, plan it, and print it."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

from prime_ext.cost.errors import PlanError
from prime_ext.cost.plan import GIB, Plan, make_plan

COLUMNS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "idle", "host", "working")


def run(config_name: str, overrides: Sequence[str], device_gib: float | None, as_json: bool) -> int:
    """Print the plan of a configuration; 1 if it does not fit, 2 if there is none.

    Args:
        config_name: a primary configuration of prime_ext.
        overrides: as for ``prime_ext.train``.
        device_gib: memory of a device; None to look.
        as_json: print JSON instead of a table.
    """
    from prime_ext.settings_checks import SettingsError
    from prime_ext.train import compose_for_verl

    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config = compose_for_verl(config_name, list(overrides))
            device_bytes = device_gib * GIB if device_gib else detect_device_bytes(config.trainer)
            plan = make_plan(config, device_bytes)
        except (SettingsError, PlanError) as error:
            print(f"prime_ext.doctor: {error}", file=sys.stderr)
            return 2
    print(json.dumps(as_dict(plan), indent=2) if as_json else render(plan))
    return 1 if plan.warnings else 0


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
    rollout = {key: value / GIB for key, value in plan.rollout.items()}
    lines.append(f"rollout engine: {rollout['weights']:.2f} weights + {rollout['cache']:.2f} cache")
    lines += ["", "peak of each part of a step, GiB per device"]
    lines += [f"  {name:<16}{size / GIB:8.2f}" for name, size in plan.phases.items()]
    total = sum(work.flops for work in plan.work)
    lines += ["", f"FLOPs per step: {total:.3g} at most (responses of full length)"]
    for work in plan.work:
        times_n = f"{work.flops_per_token_and_weight:5.1f} N"
        lines.append(f"  {work.name:<30}{times_n}{work.flops:12.3g}{work.flops / total:7.1%}")
    lines.append(f"  share of the PRM{plan.prm_share:38.1%}")
    lines.append("")
    size = plan.device_bytes
    known = "unknown here; give --device-memory GIB" if size is None else f"{size / GIB:.1f} GiB"
    lines.append(f"memory of a device: {known}")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if size is not None and not plan.warnings:
        lines.append(f"fits: {plan.peak[1] / size:.0%} of a device at most ({plan.peak[0]})")
    return "\n".join(lines)
