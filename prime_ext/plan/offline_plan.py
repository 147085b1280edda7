# SPDX-License-Identifier: Apache-2.0
"""What offline training of an implicit PRM needs: memory, FLOPs, time and disk space, without data, models or a GPU.

    python -m prime_ext.plan.offline_plan --devices 8 --device-memory 80 --prompts 82455 model.path=MODEL ...

Words are overrides of prime_ext/config/offline_prm_common.yaml. Exits with 0 if it fits, 1 if it does not, 2 if the
settings cannot work or there is no plan.
"""

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.offline_prm.settings import OfflineSettings
from prime_ext.plan import flops as flops_module
from prime_ext.plan.engines import frozen, read_engine
from prime_ext.plan.errors import PlanError
from prime_ext.plan.estimate import checkpoint_parts, estimate_hours
from prime_ext.plan.flops import Passes, training_passes
from prime_ext.plan.memory import Engine, engine_memory
from prime_ext.plan.plan import GIB, PROCESS_BYTES, Plan, Work
from prime_ext.plan.report import as_dict, render, stand_in

MODEL, REFERENCE = "PRM", "reference"


def make_offline_plan(
    config: DictConfig,
    settings: OfflineSettings,
    devices: int,
    device_bytes: float | None,
    responses: int = 8,
    prompts: int | None = None,
    mean_tokens: int | None = None,
) -> Plan:
    """Plan a resolved configuration of the offline trainer.

    Args:
        config, settings: of the run.
        devices: processes, one device each.
        device_bytes: memory of a device; None if unknown.
        responses: of a prompt.
        prompts: of the data, for the number of steps; None if unknown.
        mean_tokens: expected mean length of a prompt and its response, for the hours; None for the longest.

    Raises:
        PlanError: a model cannot be read, or the engine is none of FSDP's.
    """
    engines = _engines(config, settings, devices)
    memory = [engine_memory(engine) for engine in engines.values()]
    cpu = settings.trainer.device == "cpu"
    process, idle = PROCESS_BYTES["cpu" if cpu else "cuda"], sum(part.idle for part in memory)
    work = list(_work(settings, engines, responses))
    steps = _steps(settings, prompts)
    share = min(mean_tokens or settings.data.max_length, settings.data.max_length) / settings.data.max_length
    plan = Plan(
        facts={
            "device": "cpu" if cpu else "cuda",
            "devices": devices,
            "loss": settings.prm.loss,
            "responses per step": settings.data.prompts_per_step * responses,
            "tokens per step at most": settings.data.prompts_per_step * responses * settings.data.max_length,
            "steps": "unknown; give --prompts" if steps is None else steps,
            "tokens per micro-batch and device": {engine.name: engine.tokens for engine in engines.values()},
            "parameters": {engine.name: engine.shape.weights for engine in engines.values()},
        },
        memory=memory,
        rollout={},
        phases={part.name: process + idle - part.idle + part.working for part in memory},
        work=work,
        hours=[] if cpu else estimate_hours(sum(part.flops for part in work), 0.0, devices, steps, share),
        checkpoint={MODEL: float(sum(checkpoint_parts(engines[MODEL], config.checkpoint.save_contents)))},
        # The oldest goes when the next is complete.
        kept=settings.trainer.keep_checkpoints + 1 if settings.trainer.save_freq else 1,
        device_bytes=device_bytes,
    )
    plan.warn_if_too_large(lambda name: f"try {_lever(plan, name)}")
    return plan


def _engines(config: DictConfig, settings: OfflineSettings, devices: int) -> dict[str, Engine]:
    view = OmegaConf.create(
        {
            "trainer": {"device": settings.trainer.device, "n_gpus_per_node": devices, "nnodes": 1},
            # Prompt and response share one limit here.
            "data": {"max_prompt_length": 0, "max_response_length": settings.data.max_length},
        }
    )
    trained = read_engine(view, MODEL, "model", config.model, config.engine, config.batching)
    model = config.model.copy()
    OmegaConf.update(model, "path", config.prm.reference_path)
    reference = read_engine(view, REFERENCE, "prm.reference_path", model, config.engine, config.batching)
    return {MODEL: trained, REFERENCE: frozen(view, reference)}


def _work(settings: OfflineSettings, engines: dict[str, Engine], responses: int) -> list[Work]:
    """FLOPs of a step; validation is not among them."""
    # As the trainer: a loss may need scores before the update, or log-ratios of mismatched pairs, of both models.
    again = not settings.prm.by_step and PRM_LOSSES[settings.prm.loss].needs_scores
    passes = {
        "reference": (REFERENCE, Passes(forward=1 + again)),
        "scores before the update": (MODEL, Passes(forward=int(again))),
        "update": (MODEL, training_passes(engines[MODEL].recompute)),
    }
    length = settings.data.max_length
    tokens = settings.data.prompts_per_step * responses * length
    found = []
    for name, (model, count) in passes.items():
        shape = engines[model].shape
        width = shape.layers * shape.attention_width
        size = flops_module.flops(count, shape.product_weights, width, tokens, length)
        if size:
            found.append(Work(name, count.flops_per_token_and_weight, size, True))
    return found


def _steps(settings: OfflineSettings, prompts: int | None) -> int | None:
    if prompts is None:
        return None
    trained_on = round(prompts * (1 - settings.data.val_fraction))
    return settings.trainer.epochs * max(1, trained_on // settings.data.prompts_per_step)


def _lever(plan: Plan, name: str) -> str:
    """The largest lever for the part that does not fit."""
    part = next(part for part in plan.memory if part.name == name)
    levers = {
        "model.use_fused_kernels=true": part.logits,
        "a smaller batching.max_token_len_per_gpu, down to data.max_length": part.activations,
        "more devices": part.weights + part.gradients + part.optimizer,
    }
    return max(levers, key=lambda lever: levers[lever])


def main(arguments: list[str] | None = None) -> int:
    from prime_ext.config.checks import SettingsError
    from prime_ext.offline_prm.__main__ import compose

    parser = argparse.ArgumentParser(
        prog="python -m prime_ext.plan.offline_plan", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--devices", type=int, default=1, help="processes, one device each; default: %(default)s")
    parser.add_argument("--device-memory", type=float, metavar="GIB", help="of a device")
    parser.add_argument("--prompts", type=int, metavar="N", help="of the data, for the number of steps")
    parser.add_argument("--responses", type=int, metavar="N", default=8, help="of a prompt; default: %(default)s")
    parser.add_argument(
        "--mean-tokens", type=int, metavar="N", help="mean length of prompt and response, for the hours"
    )
    parser.add_argument("--model-configs", type=Path, metavar="DIR", help="DIR/NAME/config.json of models not here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("overrides", nargs="*", help="as for python -m prime_ext.offline_prm, key=value")
    options = parser.parse_intermixed_args(arguments)
    # A plan is for accelerators unless the overrides say otherwise.
    overrides = ["trainer.device=cuda", *options.overrides]
    # Libraries may print while they are imported; only the plan goes to stdout.
    with redirect_stdout(sys.stderr):
        try:
            config, settings = compose(overrides)
            if options.model_configs is not None:
                stand_in(config, options.model_configs)
            device_bytes = options.device_memory * GIB if options.device_memory else None
            plan = make_offline_plan(
                config, settings, options.devices, device_bytes, options.responses, options.prompts, options.mean_tokens
            )
        except (SettingsError, PlanError) as error:
            print(f"prime_ext: {error}", file=sys.stderr)
            return 2
    missing = [path for path in (*settings.data.train_paths, *settings.data.val_paths) if not Path(path).exists()]
    if options.json:
        print(json.dumps(as_dict(plan) | {"not_here": missing}, indent=2))
    else:
        print("\n".join([render(plan), *(f"not here: {path}" for path in missing)]))
    return 1 if plan.warnings else 0


if __name__ == "__main__":
    sys.exit(main())
