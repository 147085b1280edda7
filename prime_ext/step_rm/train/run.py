# SPDX-License-Identifier: Apache-2.0
"""The training run: the model, transformers' Trainer, then calibration, evaluation and export."""

import functools
import os
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from prime_ext.generate.export import write_folder
from prime_ext.step_rm.description import FILE, Description, PairEncoder
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS, StepRMError, class_order
from prime_ext.step_rm.scorers.local import check_fit
from prime_ext.step_rm.train.data import StepDataset, class_weights, collate, load_splits
from prime_ext.step_rm.train.metrics import fit_temperature, headline, report
from prime_ext.step_rm.train.settings import METRICS_FILE, ModelSettings, StepRMSettings
from prime_ext.utils.files import read_json, write_json, write_json_lines
from prime_ext.utils.run_store import check_identity

FINGERPRINT = "run.json"


def load_model(settings: ModelSettings) -> Any:
    """The model, with a head for -1, 0, 1.

    A model that already has such a head keeps it. One without a head gets a new one. One whose head means something
    else is refused, or gets a new one with ``model.new_head``.

    Raises:
        StepRMError: a head with other classes.
    """
    path, remote = settings.path, {"trust_remote_code": settings.trust_remote_code}
    config = AutoConfig.from_pretrained(path, **remote)
    has_head = any("SequenceClassification" in name for name in config.architectures or [])
    if has_head and not settings.new_head:
        order = class_order(config.id2label, path + "; with model.new_head=true its head is replaced; it")
        if order != LABELS:
            raise StepRMError(
                f"{path} has the classes in the order {order}, training uses {LABELS}; "
                "with model.new_head=true its head is replaced"
            )
    # Says that probabilities are a softmax; servers read it.
    config.num_labels, config.problem_type = len(LABELS), "single_label_classification"
    config.id2label, config.label2id = dict(ID2LABEL), dict(LABEL2ID)
    if not (has_head and settings.new_head):
        return AutoModelForSequenceClassification.from_pretrained(path, config=config, dtype="float32", **remote)
    body = AutoModel.from_pretrained(path, dtype="float32", **remote).state_dict()
    model = AutoModelForSequenceClassification.from_config(config, **remote)
    missing, _ = model.base_model.load_state_dict(body, strict=False)
    if missing:
        raise StepRMError(f"{path} lacks the weights {missing[0]} and {len(missing) - 1} more")
    return model


class MetricsFile(TrainerCallback):
    """``metrics.jsonl``, one object with ``step`` and ``data`` per line; written anew as a whole, so never half."""

    def __init__(self, path: Path):
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            lines = [
                {"step": entry["step"], "data": {key: value for key, value in entry.items() if key != "step"}}
                for entry in state.log_history
            ]
            write_json_lines(self.path, lines)


def weighted_loss(weight_C: torch.Tensor | None) -> Any:
    """Cross-entropy summed with class weights, over the number of inputs of the optimiser step.

    So it does not depend on how these are cut into passes; its scale not on the weights, whose mean is 1.
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits_BC = outputs["logits"].float()
        weight = None if weight_C is None else weight_C.to(logits_BC.device)
        total = F.cross_entropy(logits_BC, labels, weight=weight, reduction="sum")
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return loss


def find_checkpoint(folder: Path, settings: StepRMSettings, splits: dict[str, StepDataset]) -> str | None:
    """Return the checkpoint to go on from; None for a new run.

    Raises:
        RunError: the folder holds a run with other settings or data.
    """
    data = {name: {**split.counts(), "digest": split.digest()} for name, split in splits.items()}
    identity = {"settings": settings.of_result, "data": data}
    path, checkpoints = folder / FINGERPRINT, folder / "checkpoints"
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    if last and path.is_file():
        check_identity(folder, read_json(path), identity, "choose another trainer.output_dir or delete it")
    write_json(path, identity)
    return last


def training_arguments(settings: StepRMSettings, n_train: int) -> TrainingArguments:
    """Arguments of the Trainer."""
    optim, run = settings.optim, settings.trainer
    world = int(os.environ.get("WORLD_SIZE", "1"))
    passes = -(-n_train // (optim.batch_size * world))
    per_epoch = max(1, -(-passes // optim.accumulation))
    total = max(1, int(per_epoch * optim.epochs))
    every = max(1, min(total, per_epoch // run.evals_per_epoch))
    return TrainingArguments(
        output_dir=str(Path(run.output_dir) / "checkpoints"),
        learning_rate=optim.lr,
        num_train_epochs=optim.epochs,
        warmup_steps=int(total * optim.warmup_ratio),
        weight_decay=optim.weight_decay,
        per_device_train_batch_size=optim.batch_size,
        per_device_eval_batch_size=run.eval_batch_size,
        gradient_accumulation_steps=optim.accumulation,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        logging_steps=max(1, every // 10),
        save_total_limit=run.keep_checkpoints + 1,
        load_best_model_at_end=True,
        # How long there has been no improvement.
        restore_callback_states_from_checkpoint=True,
        metric_for_best_model=f"eval_{run.metric}",
        greater_is_better=run.metric != "nll",
        seed=run.seed,
        use_cpu=run.device == "cpu",
        bf16=run.dtype == "bfloat16",
        report_to=run.logger or "none",
        remove_unused_columns=False,
        label_names=["labels"],
    )


def train(settings: StepRMSettings) -> dict[str, Any]:
    """Train, calibrate, evaluate and write everything. Returns the results. Raises ``StepRMError``."""
    torch.manual_seed(settings.trainer.seed)
    folder = Path(settings.trainer.output_dir).expanduser()
    if settings.trainer.device == "cuda" and not torch.cuda.is_available():
        raise StepRMError("trainer.device=cuda, but torch sees no such device")
    path = settings.model.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=settings.model.trust_remote_code)
    except OSError as error:
        raise StepRMError(f"model.path={path} cannot be loaded: {str(error).splitlines()[0]}") from error
    pair_format = settings.data.pair_format()
    splits = load_splits(settings.data.paths, PairEncoder(tokenizer, pair_format))
    weight_C = class_weights(settings.optim.class_weights, splits["train"].classes)
    model = load_model(settings.model)
    pad = check_fit(model, tokenizer, pair_format.max_length, path)
    model.config.pad_token_id = pad
    checkpoint = find_checkpoint(folder, settings, splits)
    callbacks: list[TrainerCallback] = [MetricsFile(folder / METRICS_FILE)]
    if settings.trainer.patience:
        callbacks.append(EarlyStoppingCallback(settings.trainer.patience))
    trainer = Trainer(
        model=model,
        args=training_arguments(settings, len(splits["train"])),
        data_collator=functools.partial(collate, pad=pad),
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        compute_loss_func=weighted_loss(weight_C),
        compute_metrics=_compute_metrics,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    results = evaluate(trainer, splits)
    if trainer.is_world_process_zero():
        export(trainer.model, tokenizer, settings, results, folder)
        write_json(folder / "results.json", results)
    return results


def _compute_metrics(prediction: Any) -> dict[str, float]:
    logits_NC = torch.as_tensor(prediction.predictions).float()
    if not logits_NC.isfinite().all():
        raise StepRMError("the model's scores are not finite any more; lower optim.lr")
    return headline(logits_NC, torch.as_tensor(prediction.label_ids))


def evaluate(trainer: Trainer, splits: dict[str, StepDataset]) -> dict[str, Any]:
    """The temperature, from the validation split, and a report of that and the test split."""
    outputs = {}
    for name in ("validation", "test"):
        if len(splits[name]):
            prediction = trainer.predict(splits[name], metric_key_prefix=name)
            outputs[name] = torch.as_tensor(prediction.predictions).float(), torch.as_tensor(prediction.label_ids)
    temperature = fit_temperature(*outputs["validation"])
    reports = {
        name: report(*output, splits[name].step_index, splits[name].sources, temperature)
        for name, output in outputs.items()
    }
    return {
        "temperature": temperature,
        "best_step": trainer.state.best_global_step,
        "steps": trainer.state.global_step,
        "data": {name: split.counts() for name, split in splits.items()},
        **reports,
    }


def export(model: Any, tokenizer: Any, settings: StepRMSettings, results: dict[str, Any], folder: Path) -> None:
    """Write ``model/`` under a temporary name and rename it; an earlier one is replaced."""
    numbers = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions = {"python": platform.python_version(), **numbers}
    pair_format, temperature = settings.data.pair_format(), results["temperature"]
    training = {"settings": settings.of_result, "data": results["data"], "versions": versions}
    description = Description(pair_format, temperature, LABELS, training)
    write_folder(folder / "model", model, tokenizer, {FILE: description.to_json()})
