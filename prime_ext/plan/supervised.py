# SPDX-License-Identifier: Apache-2.0
"""The plan of a supervised run: memory per device, FLOPs and tokens per step, time and disk space.

    python -m prime_ext.plan.supervised --config-name sft_trainer_engine model.path=MODEL ...

The configuration is verl's for its SFT trainer (``sft_trainer_engine``) or ours for step reward models (``step_rm``).
It is composed and checked first. Needs no GPU, no data and of the model only its ``config.json``. Exits with 0 when the
run fits, 1 when it would not start or not fit, 2 when there is no plan.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.plan.errors import PlanError
from prime_ext.plan.estimate import UTILISATION, Hours, estimate_hours
from prime_ext.plan.flops import flops, training_passes
from prime_ext.plan.memory import EngineMemory, engine_memory
from prime_ext.plan.plan import GIB, PROCESS_BYTES
from prime_ext.plan.report import stand_in
from prime_ext.plan.supervised_config import (
    STEP_RM_CONFIG,
    SupervisedRun,
    check_sft,
    check_step_rm,
    read_sft,
    read_step_rm,
)

COLUMNS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "working")
FP32 = 4


@dataclass
class SupervisedPlan:
    """What a supervised run would need.

    Attributes:
        facts: what the numbers rest on.
        memory: bytes per device.
        peak: bytes per device, with the process itself.
        tokens: of an optimiser step.
        flops: of an optimiser step, all devices together.
        steps: of the run; None where the number of rows is not known.
        hours: by kind of device.
        checkpoint: bytes of one.
        kept: checkpoints on disk; None if all are kept.
        device_bytes: memory of a device, None if unknown.
        warnings: one line each.
    """

    facts: dict[str, Any]
    memory: EngineMemory
    peak: float
    tokens: float
    flops: float
    steps: int | None
    hours: list[Hours]
    checkpoint: float
    kept: int | None
    device_bytes: float | None
    warnings: list[str] = field(default_factory=list)


def make_plan(
    run: SupervisedRun, device_bytes: float | None, rows: int | None = None, mean_tokens: int | None = None
) -> SupervisedPlan:
    """Plan a run.

    Args:
        run: from the configuration.
        device_bytes: memory of a device; None if unknown.
        rows: of the training data; None if unknown.
        mean_tokens: of a row on average; None for the longest.
    """
    engine, shape = run.engine, run.engine.shape
    length = min(mean_tokens or run.longest, run.longest)
    tokens = float(run.rows_per_step * length)
    passes = training_passes(engine.recompute, bool(engine.adapter))
    work = flops(passes, shape.product_weights, shape.layers * shape.attention_width, int(tokens), length)
    memory = replicated_memory(run) if run.replicated else engine_memory(engine)
    steps, warnings = _steps(run, rows)
    peak = memory.working + PROCESS_BYTES["cpu" if run.cpu else "cuda"]
    plan = SupervisedPlan(
        facts=_facts(run, rows, length, mean_tokens is None),
        memory=memory,
        peak=peak,
        tokens=tokens,
        flops=work,
        steps=steps,
        hours=[] if run.cpu else estimate_hours(work, 0.0, run.devices, steps, 1.0),
        checkpoint=run.checkpoint_bytes,
        kept=run.kept,
        device_bytes=device_bytes,
        warnings=warnings,
    )
    if device_bytes is not None and peak > device_bytes:
        plan.warnings.append(
            f"a step needs about {peak / GIB:.1f} GiB of a device's {device_bytes / GIB:.1f}; {_advice(run, memory)}"
        )
    return plan


def replicated_memory(run: SupervisedRun) -> EngineMemory:
    """Memory of a model that every device holds: copies of the weights in 16 bit, and gradients on their way."""
    engine, plain = run.engine, engine_memory(run.engine)
    cast = engine.shape.weights * engine.compute_bytes if engine.compute_bytes < engine.weight_bytes else 0
    buckets = engine.shape.weights * FP32 if run.devices > 1 else 0
    copies = float(cast + buckets)
    return replace(plain, gathered=copies, working=plain.working - plain.gathered + copies)


def _steps(run: SupervisedRun, rows: int | None) -> tuple[int | None, list[str]]:
    if run.steps is not None:
        return int(run.steps), []
    if rows is None:
        return None, []
    batches = rows // run.rows_per_step if run.drops_rest else -(-rows // run.rows_per_step)
    if batches == 0:
        return 0, [f"{rows} rows are fewer than the {run.rows_per_step} of a step, so that there would be none"]
    return int(batches * run.epochs), []


def _facts(run: SupervisedRun, rows: int | None, length: int, longest: bool) -> dict[str, Any]:
    return {
        "devices": run.devices,
        "rows": "unknown (no data here; ROWS)" if rows is None else rows,
        "rows per step": run.rows_per_step,
        "epochs": run.epochs,
        "tokens per row": f"{length:,} at most (MEAN_TOKENS for their mean)" if longest else length,
        "tokens per micro-batch and device": run.engine.tokens,
        "parameters": run.engine.shape.weights,
        "trained parameters": run.engine.trained,
    }


def _advice(run: SupervisedRun, memory: EngineMemory) -> str:
    """The largest lever."""
    if run.replicated:
        levers = {"a smaller optim.batch_size (BATCH)": memory.activations, "a smaller model": memory.optimizer}
    else:
        levers = {
            "model.use_fused_kernels=true": memory.logits,
            "a smaller data.max_token_len_per_gpu (TOKENS_PER_GPU)": memory.activations,
            "more devices (N_GPUS), or model.lora_rank=16": memory.gradients + memory.optimizer,
        }
    return f"try {max(levers, key=lambda lever: levers[lever])}"


# ---- data ----------------------------------------------------------------------------------------------------------


def count_rows(run: SupervisedRun) -> tuple[int | None, list[str]]:
    """Rows of the training data, None unless all files are here; and those that are not."""
    import pyarrow.parquet

    missing = [name for name in run.files if not Path(name).expanduser().is_file()]
    if missing or not run.files:
        return None, missing
    count = 0
    for name in run.files:
        file = Path(name).expanduser()
        if run.split is None:
            count += pyarrow.parquet.ParquetFile(file).metadata.num_rows
        else:
            count += pyarrow.parquet.read_table(file, columns=["split"])["split"].to_pylist().count(run.split)
    return count, []


# ---- words ---------------------------------------------------------------------------------------------------------


def render(plan: SupervisedPlan) -> str:
    """The plan as a table."""
    lines = [f"{name}: {fact:,}" if isinstance(fact, int) else f"{name}: {fact}" for name, fact in plan.facts.items()]
    lines += ["", "GiB per device " + "".join(f"{column:>12}" for column in COLUMNS)]
    lines.append(f"{'model':<15}" + "".join(f"{getattr(plan.memory, column) / GIB:12.2f}" for column in COLUMNS))
    lines.append(f"peak: {plan.peak / GIB:.2f} GiB per device; {plan.memory.host / GIB:.2f} wait on the host")
    lines += ["", f"per step: {plan.tokens:,.0f} tokens, {plan.flops:.3g} FLOPs", *_times(plan)]
    kept = (
        "all are kept" if plan.kept is None else f"{plan.kept} at a time: {plan.kept * plan.checkpoint / GIB:.1f} GiB"
    )
    lines += [f"checkpoint: {plan.checkpoint / GIB:.1f} GiB; {kept}", ""]
    size = plan.device_bytes
    lines.append(
        f"memory of a device: {'unknown; give --device-memory GIB' if size is None else f'{size / GIB:.1f} GiB'}"
    )
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if size is not None and not plan.warnings:
        lines.append(f"fits: {plan.peak / size:.0%} of a device at most")
    return "\n".join(lines)


def _times(plan: SupervisedPlan) -> Iterable[str]:
    if plan.hours:
        yield f"estimated time ({UTILISATION:.0%} of the peak, not measured)"
    for hours in plan.hours:
        of_run = ""
        if hours.run_hours is not None:
            of_run = f"{hours.run_hours:9.1f} h for {plan.steps:,} steps, {hours.device_hours:,.0f} device hours"
        per_million = hours.step_seconds / plan.tokens * 1e6
        yield f"  {hours.device:<6}{hours.step_seconds:9.2f} s per step{per_million:9.1f} s per million tokens{of_run}"


# ---- the command ---------------------------------------------------------------------------------------------------


def run_plan(options: argparse.Namespace) -> int:
    """Print the plan; returns the exit status."""
    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config = compose_config(options.config_name, options.overrides)
            problems = check_sft(config) if options.config_name == SFT_CONFIG else check_step_rm(config)
            if problems:
                return _refuse(problems)
            run, missing = _read(config, options)
            rows, absent = count_rows(run)
            device = options.device_memory * GIB if options.device_memory else None
            plan = make_plan(run, device, options.rows or rows, options.mean_tokens)
        except (SettingsError, PlanError) as error:
            print(f"prime_ext.plan.supervised: {error}", file=sys.stderr)
            return 2
    missing += [f"data: {name} does not exist" for name in absent]
    if options.json:
        print(json.dumps(asdict(plan) | {"not_here": missing}, indent=2))
    else:
        print("\n".join([render(plan), *(f"not here: {line}" for line in missing)]))
    return 1 if plan.warnings else 0


def _refuse(problems: list[str]) -> int:
    for problem in problems:
        print(f"prime_ext: {problem}", file=sys.stderr)
    return 1


def _read(config: DictConfig, options: argparse.Namespace) -> tuple[SupervisedRun, list[str]]:
    """The run, and the models that are not here."""
    wanted = str(config.model.path)
    if options.model_configs is not None:
        stand_in(config, options.model_configs)
    missing = [] if config.model.path == wanted else [f"model.path: {wanted}; its sizes are from {config.model.path}"]
    if options.config_name == SFT_CONFIG:
        return read_sft(config), missing
    return read_step_rm(config, options.devices), missing


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m prime_ext.plan.supervised",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config-name", choices=(SFT_CONFIG, STEP_RM_CONFIG), required=True)
    parser.add_argument("--device-memory", type=float, metavar="GIB", help="memory of a device")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="with step_rm; default: %(default)s")
    parser.add_argument("--rows", type=int, metavar="N", help="training rows; default: those of the files, if here")
    parser.add_argument("--mean-tokens", type=int, metavar="N", help="mean length of a row; default: the longest")
    parser.add_argument("--model-configs", type=Path, metavar="DIR", help="DIR/NAME/config.json of models not here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table; sizes in bytes")
    parser.add_argument("overrides", nargs="*", help="key=value")
    return run_plan(parser.parse_intermixed_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
