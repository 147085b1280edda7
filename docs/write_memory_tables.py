# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/how_to/memory.md, from the planner behind ``python -m prime_ext.doctor --plan``.

    python docs/write_memory_tables.py

plans the recipe of Eurus-2-7B-PRIME with one change after the other, and replaces what is between the markers of the
page. It needs neither a GPU nor models; a test compares the page with what this writes.
"""

import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from page_tables import replace

from prime_ext.config.compose import compose_config
from prime_ext.plan.plan import GIB, Known, Plan, make_plan
from prime_ext.plan.report import stand_in
from prime_ext.plan.rl import read_rl
from prime_ext.preflight.check import check_config
from prime_ext.utils.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how_to" / "memory.md"
RECIPE = ROOT / "recipes" / "prime" / "run_eurus2-7b_fsdp.sh"
# Prompt and response on average: what the time of a step is in proportion to.
MEAN_TOKENS = 1400

ACTOR = "actor_rollout_ref.actor"
# Of training passes, and of those without gradients.
TOKENS = (
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    "prm.max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "prm.infer_max_token_len_per_gpu",
)
PARAMETERS = (f"{ACTOR}.fsdp_config.param_offload", "prm.engine.param_offload")
OPTIMIZERS = (f"{ACTOR}.fsdp_config.optimizer_offload", "prm.engine.optimizer_offload")


def both(keys: Sequence[str], value: object) -> tuple[str, ...]:
    """Overrides of the same value for the policy and the PRM."""
    return tuple(f"{key}={value}" for key in keys)


START = (*both(TOKENS, 8192), *both(PARAMETERS, "false"), *both(OPTIMIZERS, "false"))
FUSED = both(("actor_rollout_ref.model.use_fused_kernels", "prm.model.use_fused_kernels"), "true")
SHORTER = both(TOKENS, 4096)
OFFLOAD = (*both(PARAMETERS, "true"), *both(OPTIMIZERS, "true"))
LESS_CACHE = ("actor_rollout_ref.rollout.gpu_memory_utilization=0.5",)
POLICY_REFERENCE = ("prm.reference=policy",)
ADAPTER = ("prm.model.lora_rank=16", "prm.reference=base", "prm.optim.lr=1e-5")

# One change each, from the start.
ALONE = (
    ("the start", ()),
    ("1. `use_fused_kernels=true` for both", FUSED),
    ("2. 4,096 tokens per pass instead of 8,192", SHORTER),
    ("3. `optimizer_offload=true` for both", both(OPTIMIZERS, "true")),
    ("3. and `param_offload=true` for both", OFFLOAD),
    ("4. `gpu_memory_utilization=0.5` instead of 0.7", LESS_CACHE),
    ("5. `prm.reference=policy`", POLICY_REFERENCE),
    ("6. the PRM as an adapter", ADAPTER),
    ("7. a PRM of 3 B", ("prm.model.path=Qwen/Qwen2.5-3B",)),
    ("no PRM, to compare", ("prm.enable=false", "prime.process.coefficient=0")),
)

# One change after the other, from the start.
LADDER = (
    ("the start", ()),
    ("1. and fused kernels", FUSED),
    ("2. and 4,096 tokens per pass", SHORTER),
    ("3. and offloading", OFFLOAD),
    ("4. and `gpu_memory_utilization=0.5`", LESS_CACHE),
    ("5. and `prm.reference=policy`", POLICY_REFERENCE),
    ("6. or the PRM as an adapter", ADAPTER),
)
MACHINES = ((8, 80), (8, 40), (8, 24), (4, 80), (2, 80), (1, 80))


@functools.cache
def recipe_overrides() -> tuple[str, ...]:
    """What the recipe's dry run would plan, as overrides."""
    with tempfile.TemporaryDirectory() as folder:
        # An interpreter that only writes down what it is called with.
        stub, call = Path(folder) / "python", Path(folder) / "call"
        stub.write_text(f'#!/usr/bin/env bash\nprintf "%s\\0" "$@" > {call}\n')
        stub.chmod(0o755)
        environment = {**os.environ, "PYTHON": str(stub), "DRY_RUN": "1", "OUTPUT_DIR": "outputs/memory"}
        subprocess.run(["bash", str(RECIPE)], env=environment, check=True, capture_output=True)
        words = call.read_text().split("\0")[:-1]
    return tuple(word for word in words if "=" in word)


def composed(overrides: Sequence[str]) -> DictConfig:
    """The recipe with further overrides, the sizes of its models from ``recipes/model_configs``.

    Raises:
        ValueError: it would not start.
    """
    config = compose_config("prime_trainer", [*recipe_overrides(), *overrides])
    problems = check_config(config)
    if problems:
        raise ValueError("; ".join(problems))
    stand_in(config, ROOT / "recipes" / "model_configs")
    return config


def planned(config: DictConfig, n_devices: int = 8, device_gib: int = 80) -> Plan:
    """The plan on one node of so many devices of this size."""
    config.trainer.n_gpus_per_node = n_devices
    return make_plan(read_rl(config, Known(device_gib * GIB, MEAN_TOKENS)))


def table_of_single_changes() -> str:
    """Peaks of the parts of a step, host memory and time, each change alone; Markdown."""
    lines = [
        "| GiB per device | rollout | policy | PRM | reference | highest | on the host | s per step |",
        "| --- " * 8 + "|",
    ]
    for words, overrides in ALONE:
        plan = planned(composed([*START, *overrides]))
        names = ("rollout", "policy", "PRM", "PRM reference")
        phases = [f"{plan.phases[name] / GIB:.0f}" if name in plan.phases else "-" for name in names]
        host = sum(part.host for part in plan.memory) / GIB
        seconds = next(hours.step_seconds for hours in plan.hours if hours.device == "H100")
        cells = [words, *phases, f"{plan.peak[1] / GIB:.0f}", f"{host:.0f}", f"{seconds:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_of_machines() -> str:
    """Highest peak after each change of the ladder, on several machines; bold where it does not fit; Markdown."""
    head = ["GiB per device, highest", *(f"{count} x {size}" for count, size in MACHINES)]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    so_far: tuple[str, ...] = START
    for words, overrides in LADDER:
        so_far += overrides
        config, cells = composed(so_far), [words]
        for count, size in MACHINES:
            plan = planned(config, count, size)
            peak = f"{plan.peak[1] / GIB:.0f}"
            cells.append(f"**{peak}**" if plan.warnings else peak)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with its tables anew."""
    text = PAGE.read_text()
    for name, table in {"single changes": table_of_single_changes(), "machines": table_of_machines()}.items():
        text = replace(text, name, table)
    return text


if __name__ == "__main__":
    write_text(PAGE, page())
