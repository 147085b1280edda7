# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.offline_prm``: train an implicit PRM from labeled responses.

It works with or without torchrun.

    torchrun --standalone --nproc-per-node 8 -m prime_ext.offline_prm model.path=MODEL \\
        data.train_files=DATA.parquet

Words are overrides of prime_ext/config/offline_prm_common.yaml. ``--check`` makes all checks and
starts nothing. Exits with 2 and one line when something cannot work, and with 130 when interrupted;
the same command continues from the last checkpoint.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_ext.config.checks import SettingsError, refuse
from prime_ext.config.compose import compose_config
from prime_ext.preflight.file_checks import check_flash_attention
from prime_ext.preflight.gpu_checks import check_gpu_machine
from prime_ext.preflight.prm_checks import check_output_layer, check_weights
from prime_ext.run.checkpoint import MARKER, find_latest
from prime_ext.run.metrics_file import MetricsFile
from prime_ext.run.training_runs import (
    METRICS_FILE,
    Checkpoints,
    check_folder,
    check_folder_is_free,
    checkpoint_step,
    hold_folder,
    is_first_rank,
    read_settings,
    run_program,
)
from prime_ext.step_rm.question_split import pick_split
from prime_ext.utils.files import digest_files, read_json
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import command
from prime_ext.utils.text_tokens import wrap_prompt
from prime_ext.verl_adapter.offline_prm.labeled_responses import (
    PromptGroup,
    count_examples,
    prompt_key,
    read_data,
)
from prime_ext.verl_adapter.offline_prm.offline_settings import (
    OfflineSettings,
    check_contents,
    check_optimizer,
    check_warmup,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


def choose_device(overrides: list[str]) -> str:
    """Return ``cpu`` or the accelerator, from ``trainer.device`` or, for ``auto``, from torch."""
    chosen = [word.partition("=")[2] for word in overrides if word.startswith("trainer.device=")]
    if chosen and chosen[-1] != "auto":
        return chosen[-1]
    if os.environ.get("VERL_PLATFORM"):
        return os.environ["VERL_PLATFORM"]
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def compose(overrides: list[str]) -> tuple["DictConfig", OfflineSettings]:
    """Compose and check the configuration; set ``VERL_PLATFORM=cpu`` for the CPU.

    Raises SettingsError.
    """
    # Before composing: Hydra looks for configurations in verl, and verl chooses its platform when
    # it is imported.
    device = choose_device(overrides)
    if device == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
        from prime_ext.verl_adapter.cpu.install import install

        install()
    config = compose_config("offline_prm_cpu" if device == "cpu" else "offline_prm", overrides)
    settings = read_settings(OfflineSettings, config)
    refuse(settings.problems())
    check_folder("model.path", config.model.path)
    check_folder("prm.reference_path", settings.prm.reference_path)
    if config.model.lora_rank:
        raise SettingsError(
            f"model.lora_rank={config.model.lora_rank}: offline training trains all weights; set it"
            " to 0"
        )
    refuse(check_optimizer(config.optim))
    refuse(check_contents(config.checkpoint))
    weights = check_weights("engine", config.engine)
    refuse([*weights, *check_output_layer("model", config.model, config.engine.strategy)][:1])
    return config, settings


def load(settings: OfflineSettings) -> tuple[list[PromptGroup], list[PromptGroup]]:
    """Return training and validation data, checked. Raises ``SourceError``."""
    prm = settings.prm
    data = settings.data
    train = read_data(data.train_files, prm)
    validation = read_data(data.val_files, prm)
    known = {normalize_prompt(group): group for group in train}
    if shared := [group for group in validation if normalize_prompt(group) in known]:
        first = shared[0]
        places = [group.examples[0].where for group in (first, known[normalize_prompt(first)])]
        raise SourceError(
            f"{len(shared)} of {len(validation)} prompts of data.val_files are also in"
            f" data.train_files ({places[0]}, {places[1]}), so they are not held out; remove them,"
            " or leave out data.val_files and set data.val_fraction"
        )
    if data.val_fraction:
        # By hash, so that a prompt keeps its side when other rows come or go.
        splits = [
            pick_split(prompt_key(group.prompt), data.val_fraction, 0.0, data.split_seed)
            for group in train
        ]
        validation = [
            group for group, split in zip(train, splits, strict=True) if split == "validation"
        ]
        train = [group for group, split in zip(train, splits, strict=True) if split == "train"]
    if prm.loss == "dpo":
        train = [group for group in train if group.is_mixed]
        if not train:
            raise SourceError(
                f"{', '.join(data.train_files)}: no prompt has both a correct and a wrong response,"
                " which prm.loss=dpo needs; ce, nca and kto do not"
            )
    if not train:
        raise SourceError(
            f"{', '.join(data.train_files)}: no prompt is left to train on; lower data.val_fraction"
        )
    return train, validation


def normalize_prompt(group: PromptGroup) -> str:
    """Return a text that is equal for prompts that differ in white space only."""
    messages = wrap_prompt(group.prompt)
    return json.dumps(
        [[message["role"], " ".join(message["content"].split())] for message in messages]
    )


def describe(train: list[PromptGroup], validation: list[PromptGroup]) -> str:
    labels = [
        example.label for group in train for example in group.examples if example.label is not None
    ]
    mixed = sum(group.is_mixed for group in train)
    what = "labeled steps"
    if labels:
        what = f"{sum(labels) / len(labels):.1%} correct, {mixed} prompts with both"
    return (
        f"{len(train)} prompts with {count_examples(train)} responses to train on ({what}), "
        f"{len(validation)} with {count_examples(validation)} held out"
    )


def describe_dropped(name: str, read: list[PromptGroup], used: list[PromptGroup]) -> list[str]:
    """Return lines about the prompts and responses that ``data.max_length`` leaves out."""
    dropped = count_examples(read) - count_examples(used)
    if not dropped:
        return []
    return [
        f"{name}: {dropped} of {count_examples(read)} responses are left out, as"
        f" data.max_length would cut them, and {len(read) - len(used)} of {len(read)} prompts"
    ]


def check(config: "DictConfig", settings: OfflineSettings) -> None:
    """Make all checks of a run, and print what it would train on. Raises ``SourceError``."""
    from transformers import AutoTokenizer

    from prime_ext.utils.text_tokens import TextEncoder
    from prime_ext.verl_adapter.offline_prm.batches import prepare_groups, steps_per_epoch

    folder = Path(settings.trainer.output_dir)
    check_folder_is_free(folder)
    data, validation = load(settings)
    # A check of a run on several ranks is one process.
    find_checkpoint(folder, config, settings, ranks_are_free=True)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.model.path,
            local_files_only=True,
            trust_remote_code=config.model.trust_remote_code,
        )
    except (OSError, ValueError):
        print(f"{config.model.path} has no tokenizer on this machine: lengths are not checked")
    else:
        encoder = TextEncoder(tokenizer, settings.data.append_eos)
        used = [prepare_groups(groups, encoder, settings) for groups in (data, validation)]
        for name, *groups in zip(("train", "validation"), (data, validation), used, strict=True):
            for line in describe_dropped(name, *groups):
                print(line)
        data, validation = used
    per_epoch = steps_per_epoch(len(data), settings.data.prompts_per_step)
    refuse(check_warmup(config.optim, settings.trainer.epochs * per_epoch))
    print(describe(data, validation))
    print("prime_ext: nothing is wrong")


def find_checkpoint(
    folder: Path, config: "DictConfig", settings: OfflineSettings, ranks_are_free: bool = False
) -> tuple[Checkpoints, int]:
    """Return the checkpoints of a run and the step of the last. ``RunError``: of another run."""
    identity = _identity(config, settings)
    latest = find_latest(folder / "checkpoints")
    if ranks_are_free and latest is not None:
        identity["ranks"] = read_json(latest / MARKER)["identity"].get("ranks")
    checkpoints = Checkpoints(folder / "checkpoints", identity)
    return checkpoints, checkpoint_step(checkpoints.find_latest())


def train(config: "DictConfig", settings: OfflineSettings) -> None:
    """Train and export. Raises ``RunError`` or ``SourceError``."""
    with hold_folder(Path(settings.trainer.output_dir)):
        _train(config, settings)


def _train(config: "DictConfig", settings: OfflineSettings) -> None:
    import torch.distributed as dist
    from omegaconf import OmegaConf
    from verl.utils.distributed import initialize_global_process_group
    from verl.utils.tracking import Tracking

    from prime_ext.generate import model_card
    from prime_ext.generate.export import build_model, write_folder
    from prime_ext.generate.prm_description import FILE, make_relative, model_name, versions
    from prime_ext.verl_adapter.offline_prm.trainer import OfflineTrainer

    data, validation = load(settings)
    main_rank = is_first_rank()
    say = print if main_rank else (lambda *_: None)
    say(describe(data, validation))
    folder = Path(settings.trainer.output_dir)
    run = settings.trainer
    # Before a model is loaded.
    checkpoints, step = find_checkpoint(folder, config, settings)
    # Also chooses the accelerator of this rank, which the worker leaves to Ray.
    initialize_global_process_group()
    trainer = OfflineTrainer(config, settings, data, validation)
    for name, read, used in (
        ("train", data, trainer.data),
        ("validation", validation, trainer.validation),
    ):
        for line in describe_dropped(name, read, used):
            say(line)
    loggers: list[Any] = [MetricsFile(folder / METRICS_FILE, step)] if main_rank else []
    if main_rank and run.logger:
        loggers.append(
            Tracking(
                run.project_name, run.experiment_name, run.logger, OmegaConf.to_container(config)
            )
        )
    steps = trainer.fit(checkpoints, loggers)
    weights = trainer.weights()
    if main_rank:
        values = asdict(settings)
        for files in ("train_files", "val_files"):
            # Nothing about the machine.
            values["data"][files] = [Path(file).name for file in values["data"][files]]
        description = {
            "loss": settings.prm.loss,
            "beta": settings.prm.beta,
            "reference": make_relative(
                model_name(values["prm"].pop("reference_path")), folder / "hf"
            ),
            "initial_model": make_relative(model_name(config.model.path), folder / "hf"),
            "append_eos": settings.data.append_eos,
            "step_prefix": settings.prm.steps.prefix,
            "step_separator": settings.prm.steps.separator,
            "steps": steps,
            "prompts": len(trainer.data),
            "responses": count_examples(trainer.data),
            "validation": trainer.final_metrics,
            "settings": {name: section for name, section in values.items() if name != "trainer"},
            "optim": OmegaConf.to_container(config.optim),
            "versions": versions(),
        }
        source = trainer.worker.model_config
        # Small learning rates change less than bfloat16 can hold.
        model = build_model(weights, source.hf_config, remote_code=source.trust_remote_code).float()
        described = {
            FILE: json.dumps(description, indent=2, allow_nan=False) + "\n",
            model_card.FILE: build_card(description),
        }
        write_folder(folder / "hf", model, source.tokenizer, described)
        say(f"metrics: {folder / METRICS_FILE}\nmodel:   {folder / 'hf'} (with {FILE})")
    dist.barrier()
    dist.destroy_process_group()


def build_card(description: Mapping[str, Any]) -> str:
    """Return the model card of an exported PRM from its description."""
    from prime_ext.generate import model_card

    facts = ("loss", "beta", "reference", "steps", "prompts", "responses")
    return model_card.build_card(
        "Implicit process reward model",
        f"{model_card.METHOD_OF_IMPLICIT_PRM} It was trained offline, on stored responses.",
        description["initial_model"],
        facts={name: description[name] for name in facts},
        settings={
            **description["settings"],
            "optim": description["optim"],
            "versions": description["versions"],
        },
        # Of the held-out prompts.
        scores=description["validation"],
        load=model_card.load_prm(description["reference"]),
        use=model_card.USE_PRM,
        tags=["process-reward-model"],
    )


def _identity(config: "DictConfig", settings: OfflineSettings) -> dict[str, Any]:
    """Return the settings that decide the course of a run; ranks decide how state is stored."""
    from omegaconf import OmegaConf

    data = asdict(settings.data)
    trainer = asdict(settings.trainer)
    del data["val_files"]
    return {
        "model": str(config.model.path),
        "training data": digest_files(data.pop("train_files")),
        "ranks": int(os.environ["WORLD_SIZE"]),
        "data": data,
        "prm": asdict(settings.prm),
        "trainer": {key: trainer[key] for key in ("epochs", "seed")},
        "optim": OmegaConf.to_container(config.optim),
    }


# The variables of torchrun for a run without it; port 0 is any that is free.
_SINGLE_RANK = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
}


def run(words: list[str]) -> None:
    config, settings = compose([word for word in words if word != "--check"])
    if choose_device(words) == "cuda":
        refuse([*check_gpu_machine(), *check_flash_attention("model", config.model)])
    if "RANK" not in os.environ:
        os.environ |= _SINGLE_RANK
    (check if "--check" in words else train)(config, settings)


@command("prime_ext", SettingsError)
def main(arguments: list[str] | None = None) -> int:
    return run_program(arguments, __doc__ or "", run)
