# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/how_to/cost.md: planned memory of recipes, and what saves some of it.

python docs/write_memory.py
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from prime_ext.plan.run import GIB
from prime_ext.plan.run import main as print_plan
from prime_ext.utils.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how_to" / "cost.md"
ABEL = ("GAIR/Abel-7B-002", "no/step_rm", "no.parquet", "no.parquet")
# Scripts below recipes/ that a dry run plans: script, words, knobs.
RECIPES: tuple[tuple[str, Sequence[str], Mapping[str, str]], ...] = (
    ("prime/run_eurus2-7b_fsdp.sh", (), {}),
    ("prime/run_eurus2-7b_lora-prm_fsdp.sh", (), {}),
    ("prime/run_qwen2.5-7b_prm-sizes_fsdp.sh", (), {"PRM_SIZE": "14B"}),
    ("prime/run_qwen2.5-math-7b_zero_fsdp.sh", (), {}),
    ("prime/run_qwen2.5-math-7b_zero_fsdp.sh", (), {"SIZE": "32b"}),
    ("prime/run_deepseek-r1-distill-1.5b_fsdp.sh", (), {}),
    *(("prime/run_qwen2.5-0.5b_gsm8k_fsdp.sh", (), {"GPU": size}) for size in ("24", "80", "141")),
    ("pspo_wrs/run_abel-7b_ppo_fsdp.sh", ABEL, {}),
)
EURUS = "prime/run_eurus2-7b_fsdp.sh"
# The recipe without its savings.
START_KNOBS = {"TOKENS_PER_GPU": "8192", "INFER_TOKENS_PER_GPU": "8192"}
START = [
    f"{section}.{kind}_offload=false"
    for section in ("actor_rollout_ref.actor.fsdp_config", "prm.engine")
    for kind in ("param", "optimizer")
]
# Number, change and costs; settings in the text of the change are those of the plan.
FUSED = (
    "`prm.model.use_fused_kernels=true`, and with `variant=guarded` or paper"
    " `actor_rollout_ref.model.use_fused_kernels=true`: the default's loss needs the policy's"
    " logits"
)
TOKENS = (
    "4,096 tokens per pass: `actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096`,"
    " `prm.max_token_len_per_gpu=4096`;"
    " `actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096`,"
    " `prm.infer_max_token_len_per_gpu=4096` for passes without gradients"
)
OPTIMIZER = (
    "`actor_rollout_ref.actor.fsdp_config.optimizer_offload=true`,"
    " `prm.engine.optimizer_offload=true`"
)
WEIGHTS = (
    "3, and `actor_rollout_ref.actor.fsdp_config.param_offload=true`,"
    " `prm.engine.param_offload=true`"
)
CACHE = "`actor_rollout_ref.rollout.gpu_memory_utilization=0.5` for 0.7"
LORA = "`prm.model.lora_rank=16 prm.trainable_layers=null prm.reference=base prm.optim.lr=1e-5`"
SMALL = "a PRM of 3 B with the policy's tokenizer: `prm.model.path=Qwen/Qwen2.5-3B`"
CHANGES: tuple[tuple[str, str, str], ...] = (
    ("1", FUSED, "1 % of the PRM's time (`chunked`)"),
    ("2", TOKENS, "more and smaller passes"),
    ("3", OPTIMIZER, "transfers; 8 bytes of host memory per weight"),
    ("4", WEIGHTS, "4 bytes more"),
    ("5", CACHE, "slower generation"),
    ("6", "`prm.reference=policy`", "rewards relative to the current policy"),
    ("7", LORA, "not measured on a real model"),
    ("8", SMALL, "paper: within a point of 7 B"),
)
# Devices, their GiB and changes that come together.
TOGETHER = ((8, 80), (8, 40), (2, 80))


def get_words(change: str) -> list[str]:
    """Return the settings in the text of a change."""
    words = [word for code in re.findall(r"`([^`]+)`", change) for word in code.split()]
    return [word for word in words if "=" in word and not word.startswith("variant=")]


def plan_recipe(script: str, words: Sequence[str], knobs: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``DRY_RUN=1`` prints for a recipe, planned in this process."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Path(folder, "python")
        # The launcher itself runs.
        launch = f'[ "$2" != recipes.launch ] || exec "{sys.executable}" "$@"'
        recorder.write_text(f'#!/bin/sh\n{launch}\nprintf "%s\\0" "$@"\n')
        recorder.chmod(0o755)
        environment = os.environ | {"DRY_RUN": "1", "PYTHON": str(recorder)} | dict(knobs)
        command = ["bash", str(ROOT / "recipes" / script), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # After -m prime_ext.doctor --plan.
    arguments = done.stdout.split("\0")[3:-1]
    printed = io.StringIO()
    with redirect_stdout(printed):
        print_plan([*arguments, "--json"])
    return json.loads(printed.getvalue())


def get_peaks(plan: Mapping[str, Any]) -> list[str]:
    """Return GiB at the peak of rollout, policy, PRM or critic, and reference."""
    peaks = {name: sum(parts.values()) / GIB for name, parts in plan["phases"].items()}
    found = [
        next((peaks[name] for name in names if name in peaks), None)
        for names in (
            ("rollout",),
            ("policy",),
            ("PRM", "critic"),
            ("PRM reference", "KL reference"),
        )
    ]
    return ["-" if peak is None else f"{peak:.0f}" for peak in found]


def list_recipes() -> list[str]:
    """Return the rows of the table of recipes."""
    rows = []
    for script, words, knobs in RECIPES:
        plan = plan_recipe(script, words, knobs)
        facts = plan["facts"]
        name = " ".join([*(f"{key}={value}" for key, value in knobs.items()), script])
        devices = f"{facts['devices']} of {plan['device_bytes'] / GIB:.0f}"
        tokens = f"{facts['tokens per rollout at most']:,}"
        sizes = [*get_peaks(plan), f"{facts['GiB of a checkpoint']:.0f}"]
        rows.append(f"| {' | '.join([f'`{name}`', devices, tokens, *sizes])} |")
    return rows


def list_changes() -> list[str]:
    """Return the rows of the table of changes to the recipe of Eurus-2-7B."""

    def plan(words: Sequence[str], knobs: Mapping[str, str]) -> str:
        return " | ".join(get_peaks(plan_recipe(EURUS, [*START, *words], START_KNOBS | knobs)))

    rows = [f"| | none | {plan([], {})} | |"]
    for number, change, costs in CHANGES:
        words = get_words(change)
        if change is WEIGHTS:
            words += get_words(OPTIMIZER)
        rows.append(f"| {number} | {change} | {plan(words, {})} | {costs} |")
    together = [word for _, change, _ in CHANGES[:5] for word in get_words(change)]
    for devices, size in TOGETHER:
        knobs = {"N_GPUS": str(devices), "DEVICE_MEMORY": str(size)}
        rows.append(f"| | 1 to 5, {devices} devices of {size} GiB | {plan(together, knobs)} | |")
    return rows


def build_page(page: str) -> str:
    """Return the text of the page with the rows of its tables as the plan has them now."""
    for head, rows in (("| recipe |", list_recipes()), ("| | change |", list_changes())):
        start = page.index("\n", page.index("\n| ---", page.index(f"\n{head}")) + 1) + 1
        end = page.index("\n\n", start - 1) + 1
        page = page[:start] + "\n".join(rows) + "\n" + page[end:]
    return page


if __name__ == "__main__":
    write_text(PAGE, build_page(PAGE.read_text()))
