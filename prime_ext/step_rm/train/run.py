# SPDX-License-Identifier: Apache-2.0
"""The training run: the model, transformers' Trainer, then calibration, evaluation and export."""

import functools
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from prime_ext.generate.export import write_folder
from prime_ext.generate.prm_description import versions
from prime_ext.step_rm.description import FILE, Description, PairEncoder
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS, StepRMError, class_order
from prime_ext.step_rm.scorers.local import check_fit
from prime_ext.step_rm.train.data import Row, collate, counts, digest, load_splits
from prime_ext.step_rm.train.metrics import fit_temperature, headline, report
from prime_ext.step_rm.train.settings import METRICS_FILE, ModelSettings, StepRMSettings
from prime_ext.utils.files import read_json, write_json, write_json_lines
from prime_ext.utils.run_store import check_identity

FINGERPRINT = "run.json"


def load_model(settings: ModelSettings) -> Any:
    """Load the model with a head for -1, 0, 1, its own if it has one.

    Raises ``StepRMError`` if its head has other classes.
    """
    path, remote = settings.path, {"trust_remote_code": settings.trust_remote_code}
    config = AutoConfig.from_pretrained(path, **remote)
    if any("SequenceClassification" in name for name in config.architectures or []):
        order = class_order(config.id2label, path)
        if order != LABELS:
            raise StepRMError(f"{path} has the classes in the order {order}, training uses {LABELS}")
    # The problem type tells servers that probabilities are a softmax.
    config.num_labels, config.problem_type = len(LABELS), "single_label_classification"
    config.id2label, config.label2id = dict(ID2LABEL), dict(LABEL2ID)
    return AutoModelForSequenceClassification.from_pretrained(path, config=config, dtype="float32", **remote)


class MetricsFile(TrainerCallback):
    """Write ``metrics.jsonl``, one object with ``step`` and ``data`` per line; each time anew, so never half."""

    def __init__(self, path: Path):
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            lines = [
                {"step": entry["step"], "data": {key: value for key, value in entry.items() if key != "step"}}
                for entry in state.log_history
            ]
            write_json_lines(self.path, lines)


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the cross-entropy over the inputs of the optimizer step, however these are cut into passes."""
    total = F.cross_entropy(outputs["logits"].float(), labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def find_checkpoint(folder: Path, settings: StepRMSettings, splits: dict[str, list[Row]]) -> str | None:
    """Return the checkpoint to continue from; None for a new run.

    Raises ``RunError`` if the folder holds a run with other settings or data.
    """
    data = {name: {**counts(rows), "digest": digest(rows)} for name, rows in splits.items()}
    identity = {"settings": settings.of_result, "data": data}
    path, checkpoints = folder / FINGERPRINT, folder / "checkpoints"
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    if last and path.is_file():
        check_identity(folder, read_json(path), identity, "choose another trainer.output_dir or delete it")
    write_json(path, identity)
    return last


def training_arguments(settings: StepRMSettings, n_train: int) -> TrainingArguments:
    """Return the arguments of the Trainer for ``n_train`` inputs."""
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
        # The evaluations without improvement.
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
    """Train, calibrate, evaluate and write everything; return the results. Raises ``StepRMError``."""
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
    model = load_model(settings.model)
    model.config.pad_token_id = pad = check_fit(model, tokenizer, pair_format.max_length, path)
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
        compute_loss_func=mean_loss,
        compute_metrics=_compute_metrics,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    results = evaluate(trainer, splits)
    if trainer.is_world_process_zero():
        training = {"settings": settings.of_result, "data": results["data"], "versions": versions()}
        description = Description(pair_format, results["temperature"], LABELS, training)
        write_folder(folder / "model", trainer.model, tokenizer, {FILE: description.to_json()})
        write_json(folder / "results.json", results)
    return results


def _compute_metrics(prediction: Any) -> dict[str, float]:
    logits_NC = torch.as_tensor(prediction.predictions).float()
    if not logits_NC.isfinite().all():
        raise StepRMError("the model's scores are not finite any more; lower optim.lr")
    return headline(logits_NC, torch.as_tensor(prediction.label_ids))


def evaluate(trainer: Trainer, splits: dict[str, list[Row]]) -> dict[str, Any]:
    """Fit the temperature on the validation split, and report on that and the test split."""
    outputs = {}
    for name in ("validation", "test"):
        if splits[name]:
            prediction = trainer.predict(splits[name], metric_key_prefix=name)
            outputs[name] = torch.as_tensor(prediction.predictions).float(), torch.as_tensor(prediction.label_ids)
    temperature = fit_temperature(*outputs["validation"])
    return {
        "temperature": temperature,
        "best_step": trainer.state.best_global_step,
        "steps": trainer.state.global_step,
        "data": {name: counts(rows) for name, rows in splits.items()},
        **{name: report(*output, temperature) for name, output in outputs.items()},
    }
