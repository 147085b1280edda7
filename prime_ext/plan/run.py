# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.doctor --plan``: memory per device of an RL run, in advance.

Nothing is run. A plan needs no GPU and no data, and of models only their ``config.json``. Exits
with 0 when the run fits, 1 when it would not start or not fit, 2 without a plan.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import rollout_ranks, trainers_generate
from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.config.step_scorer_settings import scorer_section
from prime_ext.methods.prm_settings import forward_tokens
from prime_ext.methods.settings import prm_section
from prime_ext.plan.memory import (
    FP32,
    Engine,
    ModelShape,
    engine_memory,
    freeze,
    keep_on_host,
    pass_memory,
    read_engine,
)
from prime_ext.preflight.check import check_config, check_files, compose_for_verl
from prime_ext.prm.frozen_layers import count_layers

GIB = 2**30
# Interpreter, libraries, and on a GPU CUDA, NCCL and what vLLM keeps asleep (context, graphs); not
# measured on GPUs.
PROCESS_BYTES = {"cpu": 0.65 * GIB, "cuda": 4.0 * GIB}


def main(arguments: list[str]) -> int:
    """Print a plan and return the exit status; absent files are listed, and are not a failure."""
    parser = argparse.ArgumentParser(prog="python -m prime_ext.doctor --plan", description=__doc__)
    parser.add_argument(
        "--config-name", default="prime_trainer", help="of prime_ext.train; default: %(default)s"
    )
    parser.add_argument(
        "--device-memory", type=float, metavar="GIB", help="default: the device of this machine"
    )
    parser.add_argument(
        "--model-configs", type=Path, metavar="DIR", help="DIR/NAME/config.json of models not here"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of a table; sizes in bytes"
    )
    parser.add_argument("overrides", nargs="*", help="as for the trainer, key=value")
    options = parser.parse_intermixed_args(arguments)
    problems: list[str] = []
    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config = compose_for_verl(options.config_name, options.overrides)
            problems = check_config(config)
            not_here = [] if problems else list(check_files(config))
            # Rows that are here and cannot be trained on, or not in such batches.
            of_rows = ("data.", "trainer.total_training_steps")
            problems += [
                line
                for line in not_here
                if line.startswith(of_rows) and not line.endswith("does not exist")
            ]
            not_here = [line for line in not_here if line not in problems]
            if options.model_configs:
                replace_missing_models(config, options.model_configs)
            size = options.device_memory and options.device_memory * GIB
            if size is None and config.trainer.device == "cpu":
                size = psutil.virtual_memory().total / config.trainer.n_gpus_per_node
            elif size is None and torch.cuda.is_available():
                size = float(torch.cuda.get_device_properties(0).total_memory)
            plan = plan_run(config, size)
        except ValueError as error:
            print(
                *(f"prime_ext: {problem}" for problem in [*problems, error]),
                sep="\n",
                file=sys.stderr,
            )
            return 2
    plan["warnings"] += problems
    print(
        json.dumps(plan | {"not_here": not_here}, indent=2)
        if options.json
        else render(plan, not_here)
    )
    return 1 if plan["warnings"] else 0


def replace_missing_models(config: DictConfig, model_configs: Path) -> None:
    """Replace models that are not here by the folders of the same name in ``model_configs``."""
    for key in (
        "actor_rollout_ref.model.path",
        "critic.model.path",
        "prm.model.path",
        "prm.reference_path",
    ):
        path = Path(OmegaConf.select(config, key) or ".").expanduser()
        described = model_configs / path.name
        if (
            path.name
            and not (path / "config.json").is_file()
            and (described / "config.json").is_file()
        ):
            OmegaConf.update(config, key, str(described))


def render(plan: dict[str, Any], not_here: list[str]) -> str:
    """Return the plan as tables."""
    lines = []
    for name, fact in plan["facts"].items():
        text = (
            ", ".join(f"{key} {value:,}" for key, value in fact.items())
            if isinstance(fact, dict)
            else fact
        )
        note = " (trainer.nnodes * trainer.n_gpus_per_node)" if name == "devices" else ""
        lines.append(f"{name}: {text:,}{note}" if isinstance(text, int) else f"{name}: {text}")
    columns = list(plan["memory"]["policy"])
    # Sizes of tiny models in GiB would all be 0.00.
    small = max(entry["working"] for entry in plan["memory"].values()) < GIB
    unit, size_of = ("MiB", 2**20) if small else ("GiB", GIB)
    lines += ["", f"{unit} per device " + "".join(f"{column:>12}" for column in columns)]
    for name, entry in plan["memory"].items():
        lines.append(
            f"{name:<15}" + "".join(f"{entry[column] / size_of:>12.2f}" for column in columns)
        )
    engine = ", ".join(f"{name} {size / size_of:.2f}" for name, size in plan["rollout"].items())
    lines.append(f"rollout engine: {engine}; working: the parts to its left in the largest pass")
    lines += ["", f"peak of each part of a step, {unit} per device"]
    for name, parts in plan["phases"].items():
        terms = " + ".join(f"{size / size_of:.2f} {entry}" for entry, size in parts.items() if size)
        lines.append(f"  {name:<16}{sum(parts.values()) / size_of:>8.2f} = {terms}")
    lines.append("")
    size = plan["device_bytes"]
    peak = plan["peak"]
    known = "unknown here; give --device-memory GIB" if size is None else f"{size / GIB:.1f} GiB"
    lines.append(f"memory of a device: {known}")
    lines += [f"warning: {warning}" for warning in plan["warnings"]]
    if size is not None and not plan["warnings"]:
        lines.append(f"fits: {peak['bytes'] / size:.0%} of a device at most ({peak['phase']})")
    return "\n".join([*lines, *(f"not here: {line}" for line in not_here)])


def plan_run(config: DictConfig, device_bytes: float | None) -> dict[str, Any]:
    """Return what a run of ``prime_ext.train`` needs; sizes are bytes per device.

    SettingsError: a model cannot be read, or an engine is not one of FSDP's.
    """
    longest = int(config.data.max_prompt_length + config.data.max_response_length)
    engines = read_engines(config, longest)
    rollouts = int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)
    memory = {name: engine_memory(engine) for name, engine in engines.items()}
    rollout, warnings = _plan_rollout(
        config, engines["policy"].shape, rollouts, longest, device_bytes
    )
    cpu = config.trainer.device == "cpu"
    process = PROCESS_BYTES["cpu" if cpu else "cuda"]
    idle = sum(entry["idle"] for entry in memory.values())
    generates = sum(rollout.values())
    awake = {"process": process, "models that wait": idle, "rollout engine": generates}
    phases = {"rollout": awake} if trainers_generate(config) else {}
    for name, entry in memory.items():
        phases[name] = {
            "process": process,
            "models that wait": idle - entry["idle"],
            "working": entry["working"],
        }
        if "rollout" in phases and not config.actor_rollout_ref.rollout.free_cache_engine:
            phases[name]["rollout engine"] = generates
    # The targets of the policy's loss add to its update: their weights, where these wait on the
    # host, gathered ones, and their logits, all until backward.
    targets = [engine for engine in engines.values() if engine.is_target]
    loaded = sum(
        memory[name]["weights"]
        for name, each in engines.items()
        if each.is_target and each.param_offload
    )
    logits = sum(
        engines["policy"].tokens * each.shape.vocabulary * each.compute_bytes for each in targets
    )
    gathered = max((pass_memory(each)["gathered"] for each in targets), default=0.0)
    phases["policy"]["targets of its loss"] = loaded + logits + gathered
    peaks = {name: sum(parts.values()) for name, parts in phases.items()}
    highest, most = max(peaks.items(), key=lambda entry: entry[1])
    if device_bytes is not None and most > device_bytes:
        needs = (
            f"the part {highest!r} needs about {most / GIB:.3g} GiB of a device's"
            f" {device_bytes / GIB:.3g}"
        )
        warnings.append(f"{needs}; docs/how_to/cost.md says what to change")
    devices = int(config.trainer.n_gpus_per_node * config.trainer.nnodes)
    saved = [
        checkpoint_bytes(each)
        for name, each in engines.items()
        if each.trained or name == "policy average"
    ]
    facts: dict[str, Any] = (
        {"not in the plan": "the step reward model"} if scorer_section(config) else {}
    )
    if servers := rollout_ranks(config):
        facts["not in the plan"] = f"the {servers} devices that generate at the same time"
    facts |= {
        "device": config.trainer.device,
        "devices": devices,
        "rollouts per step": rollouts,
        "tokens per rollout at most": longest,
        "tokens per micro-batch and device": {
            name: engine.tokens for name, engine in engines.items()
        },
        "parameters": {name: engine.shape.weights for name, engine in engines.items()},
        **_name_used_parameters(engines),
        "trained parameters": {name: engine.trained for name, engine in engines.items()},
        "GiB of a checkpoint": round(sum(saved) / GIB, 3),
    }
    return {
        "facts": facts,
        "memory": memory,
        "rollout": rollout,
        "phases": phases,
        "peak": {"phase": highest, "bytes": most},
        "device_bytes": device_bytes,
        "warnings": warnings,
    }


def _name_used_parameters(engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Return the parameters that a token uses, if a model has experts that it does not reach."""
    if not any(engine.shape.idle_weights for engine in engines.values()):
        return {}
    used = {name: each.shape.weights - each.shape.idle_weights for name, each in engines.items()}
    return {"parameters that a token uses": used}


def read_engines(config: DictConfig, longest: int) -> dict[str, Engine]:
    """Return the models of a run by name."""
    policy = config.actor_rollout_ref
    actor = config.actor_rollout_ref.actor
    prm = prm_section(config)
    cpu = config.trainer.device == "cpu"
    read = partial(read_engine, trainer=config.trainer, longest=longest)
    key = "actor_rollout_ref.model.path"
    budget = policy.rollout.log_prob_max_token_len_per_gpu
    engine = read(key, policy.model, actor.get("fsdp_config") or {}, actor, budget)
    engines = {"policy": engine}
    has_penalty = bool(actor.use_kl_loss or config.algorithm.use_kl_in_reward)
    # The reference of an adapter is the policy without it.
    if has_penalty and not engine.adapter:
        budget = policy.ref.log_prob_max_token_len_per_gpu
        engines["KL reference"] = keep_on_host(
            read(key, policy.model, policy.ref.fsdp_config, actor, budget), cpu
        )
    if config.algorithm.adv_estimator == "gae":
        engine = read("critic.model.path", config.critic.model, config.critic.fsdp, config.critic)
        values = engine.shape.make_critic()
        engines["critic"] = replace(engine, shape=values, trained=engine.adapter or values.weights)
    if "prime" in config and config.prime.anchor is not None:
        # An average of the policy's weights, toward which the policy is pulled.
        engine = replace(read(key, policy.model, actor.fsdp_config, actor), weight_bytes=FP32)
        engines["policy average"] = replace(freeze(engine), is_target=True)
    if prm is None:
        return engines
    engine = read("prm.model.path", prm.model, prm.engine, prm, forward_tokens(prm))
    if prm.get("trainable_layers") is not None:
        layers = count_layers(prm.trainable_layers, engine.shape.layers)
        engine = replace(engine, trained=layers * engine.shape.block_weights, trained_layers=layers)
    distills = config.prime.process is not None and config.prime.process.form == "kl"
    if prm.update_mode == "none":
        engine = freeze(engine) if distills else keep_on_host(engine, cpu)
    engines["PRM"] = replace(engine, is_target=distills)
    if prm.reference == "frozen":
        model = OmegaConf.merge(prm.model, {"path": prm.reference_path, "lora_rank": 0})
        engine = read("prm.reference_path", model, prm.engine, prm, forward_tokens(prm))
        engines["PRM reference"] = keep_on_host(engine, cpu)
    return engines


def _plan_rollout(
    config: DictConfig, shape: ModelShape, rollouts: int, longest: int, device_bytes: float | None
) -> tuple[dict[str, float], list[str]]:
    """Return the bytes of the rollout engine, and a warning where its cache is too small."""
    rollout = config.actor_rollout_ref.rollout
    size = DTYPE_BYTES.get(str(rollout.dtype), 8) / int(rollout.tensor_model_parallel_size)
    weights = shape.weights * size
    per_token = 2 * shape.layers * shape.key_value_width * size
    one_sequence = longest * per_token
    warnings = []
    if config.trainer.device == "cpu" or device_bytes is None:
        oversample = config.prime.filter.oversample if "prime" in config else 1
        cache = min(rollout.max_num_seqs, rollouts * oversample) * one_sequence
    else:
        cache = rollout.gpu_memory_utilization * device_bytes - weights
        if cache < one_sequence:
            key = (
                f"actor_rollout_ref.rollout.gpu_memory_utilization={rollout.gpu_memory_utilization}"
            )
            few = f"{cache / GIB:.1f} GiB for its cache, less than one sequence needs"
            warnings = [f"{key} leaves {few}; raise it or tensor_model_parallel_size"]
    return {"weights": weights, "cache": cache}, warnings


def checkpoint_bytes(engine: Engine) -> int:
    """Return a checkpoint's bytes over all devices: weights, and Adam's states of trained ones."""
    return (engine.shape.weights + engine.adapter + 2 * engine.trained) * engine.weight_bytes
