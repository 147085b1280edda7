# SPDX-License-Identifier: Apache-2.0
"""The training run: data, model, transformers' Trainer, calibration, evaluation and export."""

import functools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from prime_ext.generate import model_card
from prime_ext.generate.export import write_folder
from prime_ext.generate.prm_description import make_relative, model_name, versions
from prime_ext.run.metrics_file import MetricsFile
from prime_ext.run.training_runs import (
    METRICS_FILE,
    Checkpoints,
    check_folder_is_free,
    checkpoint_step,
    hold_folder,
    is_first_rank,
)
from prime_ext.step_rm.description import FILE, Description, PairEncoder
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS, StepRMError, class_order
from prime_ext.step_rm.question_split import SPLITS
from prime_ext.step_rm.records import read_steps
from prime_ext.step_rm.scorers.local import check_fit, check_length, pad_inputs
from prime_ext.step_rm.train_settings import ModelSettings, StepRMSettings
from prime_ext.utils.files import digest_files, write_json
from prime_ext.utils.hub import use_cache_without_hub
from prime_ext.utils.rows import make_batches

# Rows that are tokenized in one call.
ROWS_AT_ONCE = 1024


class Row(NamedTuple):
    """Input of the model for a step, and its class: 0 to 2 for the labels -1, 0, 1."""

    ids: np.ndarray
    label: int
    context_cut: bool
    step_cut: bool


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Count rows, rows of each label, and over-long ones."""
    classes = Counter(row.label for row in rows)
    labels = {f"label {label}": classes[at] for at, label in enumerate(LABELS)}
    cut = {
        "previous steps cut": sum(row.context_cut for row in rows),
        "steps cut": sum(row.step_cut for row in rows),
    }
    return {"steps": len(rows), **labels, **cut}


def load_splits(paths: Sequence[str], encoder: PairEncoder) -> dict[str, list[Row]]:
    """Tokenize all splits of all files. Raises ``StepRMError``: a bad file, or unusable splits."""
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    seen: dict[str, str] = {}
    for path in paths:
        rows = enumerate(tqdm(read_steps(path), desc=path, unit=" steps"), start=1)
        for chunk in make_batches(rows, ROWS_AT_ONCE):
            encoded = encoder.encode_all(
                [(row.question, row.previous, row.current) for _, row in chunk]
            )
            for (number, row), item in zip(chunk, encoded, strict=True):
                if seen.setdefault(row.group, row.split) != row.split:
                    raise StepRMError(
                        f"{path} row {number}: its question is in the split {row.split} here and"
                        f" {seen[row.group]} elsewhere; convert all files in one go, or with the"
                        " same shares and seed"
                    )
                ids = np.asarray(item.ids, dtype=np.int32)
                splits[row.split].append(
                    Row(ids, LABELS.index(row.label), item.context_cut, item.step_cut)
                )
    for name in ("train", "validation"):
        if not splits[name]:
            raise StepRMError(
                f"no step is in the split {name}; convert with other shares or another seed, or"
                " with --near-duplicates text if the questions differ in numbers only"
            )
    if len({row.label for row in splits["train"]}) < 2:
        raise StepRMError(
            f"all steps to train on have the label {LABELS[splits['train'][0].label]}"
        )
    return splits


def collate(rows: Sequence[Row], pad: int) -> dict[str, torch.Tensor]:
    """Build a batch, padded on the right with the id ``pad``."""
    id_BT, mask_BT = pad_inputs([torch.from_numpy(row.ids).long() for row in rows], pad)
    return {
        "input_ids": id_BT,
        "attention_mask": mask_BT,
        "labels": torch.tensor([row.label for row in rows]),
    }


def load_config(settings: ModelSettings) -> Any:
    """Load the model's configuration with our classes. Raises ``StepRMError``: it has others."""
    path = settings.path
    config = AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    if any("SequenceClassification" in name for name in config.architectures or []):
        order = class_order(config.id2label, path)
        if order != LABELS:
            raise StepRMError(
                f"{path} has the classes in the order {order}, training uses {LABELS}"
            )
    # The problem type tells servers that probabilities are a softmax.
    config.num_labels = len(LABELS)
    config.problem_type = "single_label_classification"
    config.id2label = dict(ID2LABEL)
    config.label2id = dict(LABEL2ID)
    return config


def load_model(settings: ModelSettings) -> Any:
    """Load the model, its head for -1, 0, 1 or a new one. Raises ``StepRMError``: another head."""
    return AutoModelForSequenceClassification.from_pretrained(
        settings.path,
        config=load_config(settings),
        dtype="float32",
        trust_remote_code=settings.trust_remote_code,
    )


class RunFiles(TrainerCallback):
    """Write metrics, and mark checkpoints as complete."""

    def __init__(self, path: Path, checkpoints: Checkpoints, step: int):
        self.checkpoints = checkpoints
        self.metrics = MetricsFile(path, step) if is_first_rank() else None

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.metrics is not None:
            data = dict(state.log_history[-1])
            step = data.pop("step")
            self.metrics.log(data, step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if dist.is_initialized():
            # Other ranks write their random state.
            dist.barrier()
        if is_first_rank():
            self.checkpoints.complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the mean cross-entropy over an optimizer step's inputs, however many passes it has."""
    total = F.cross_entropy(outputs["logits"].float(), labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def build_training_arguments(settings: StepRMSettings, n_train: int) -> TrainingArguments:
    """Return the arguments of the Trainer for ``n_train`` inputs."""
    optim = settings.optim
    run = settings.trainer
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


def load_inputs(settings: StepRMSettings) -> tuple[Any, dict[str, list[Row]], Checkpoints]:
    """Return tokenizer, data and checkpoints of a run. Raises ``RunError``: one cannot work."""
    if settings.trainer.device == "cuda" and not torch.cuda.is_available():
        raise StepRMError("trainer.device=cuda, but torch sees no such device")
    path = settings.model.path
    use_cache_without_hub(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=settings.model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise StepRMError(
            f"model.path={path} cannot be loaded: {str(error).splitlines()[0]}"
        ) from error
    check_length(load_config(settings.model), settings.data.max_length, path)
    splits = load_splits(settings.data.files, PairEncoder(tokenizer, settings.data.pair_format()))
    identity = {"settings": settings.of_result, "training data": digest_files(settings.data.files)}
    checkpoints = Checkpoints(output_folder(settings) / "checkpoints", identity)
    checkpoints.find_latest()
    return tokenizer, splits, checkpoints


def output_folder(settings: StepRMSettings) -> Path:
    return Path(settings.trainer.output_dir).expanduser()


def check(settings: StepRMSettings) -> None:
    """Make all checks of a run, and print its data. Raises ``RunError``."""
    check_folder_is_free(output_folder(settings))
    _, splits, _ = load_inputs(settings)
    for name, rows in splits.items():
        print(f"{name}: {', '.join(f'{what} {n:,}' for what, n in counts(rows).items())}")
    print("prime_ext: nothing is wrong")


def train(settings: StepRMSettings) -> dict[str, Any]:
    """Train, calibrate, evaluate and write everything; return results. Raises ``RunError``."""
    with hold_folder(output_folder(settings)):
        return _train(settings)


def _train(settings: StepRMSettings) -> dict[str, Any]:
    torch.manual_seed(settings.trainer.seed)
    folder = output_folder(settings)
    tokenizer, splits, checkpoints = load_inputs(settings)
    pair_format = settings.data.pair_format()
    model = load_model(settings.model)
    model.config.pad_token_id = pad = check_fit(
        model, tokenizer, pair_format.max_length, settings.model.path
    )
    latest = checkpoints.find_latest()
    callbacks: list[TrainerCallback] = [
        RunFiles(folder / METRICS_FILE, checkpoints, checkpoint_step(latest))
    ]
    if settings.trainer.patience:
        callbacks.append(EarlyStoppingCallback(settings.trainer.patience))
    trainer = Trainer(
        model=model,
        args=build_training_arguments(settings, len(splits["train"])),
        data_collator=functools.partial(collate, pad=pad),
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        compute_loss_func=mean_loss,
        compute_metrics=_compute_metrics,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=latest and str(latest))
    results = evaluate(trainer, splits)
    if trainer.is_world_process_zero():
        training = {"settings": settings.of_result, "data": results["data"], "versions": versions()}
        description = Description(pair_format, results["temperature"], LABELS, training)
        card = build_card(settings, results, folder / "model")
        files = {FILE: description.to_json(), model_card.FILE: card}
        write_folder(folder / "model", trainer.model, tokenizer, files)
        write_json(folder / "results.json", results)
    return results


def build_card(settings: StepRMSettings, results: dict[str, Any], folder: Path) -> str:
    """Return the model card of a trained model from its results."""
    names = ("steps", "majority", "accuracy", "macro_f1", "nll")
    values = settings.of_result
    # Nothing about the machine.
    values["data"]["files"] = [Path(file).name for file in values["data"]["files"]]
    base = make_relative(model_name(values["model"].pop("path")), folder)
    return model_card.build_card(
        "Step reward model",
        "A classifier of three classes that scores a step of a response: -1 (wrong), 0 (neutral), 1"
        " (correct), as in PSPO (arXiv 2411.11681). The score is the probability of 1, after"
        f" dividing the logits by the temperature. {FILE} has the format of the input.",
        base,
        facts={
            "temperature": results["temperature"],
            "best step": f"{results['best_step']} of {results['steps']}",
            "steps of reasoning to train on": results["data"]["train"]["steps"],
        },
        settings={**values, "versions": versions()},
        scores={
            split: {name: results[split][name] for name in names}
            for split in ("validation", "test")
            if split in results
        },
        load=model_card.LOAD_CLASSIFIER,
        use=model_card.USE_PRM,
        tags=["process-reward-model", "text-classification"],
    )


def _compute_metrics(prediction: Any) -> dict[str, float]:
    logits_NC = torch.as_tensor(prediction.predictions).float()
    if not logits_NC.isfinite().all():
        raise StepRMError("the model's scores are not finite any more; lower optim.lr")
    numbers = report(logits_NC, torch.as_tensor(prediction.label_ids))
    return {name: numbers[name] for name in ("accuracy", "macro_f1", "nll")}


def fit_temperature(logits_NC: torch.Tensor, class_N: torch.Tensor) -> float:
    """Return the temperature, from 0.05 to 20, of the least negative log-likelihood.

    Golden-section search on its logarithm: the likelihood of 1 / T is concave, so there is one
    optimum. At the bounds classes are separated without error, or not at all.
    """
    logits_NC = logits_NC.double()

    def loss(log_t: torch.Tensor) -> float:
        return float(F.cross_entropy(logits_NC / log_t.exp(), class_N))

    ratio = (5**0.5 - 1) / 2
    left, right = torch.tensor([0.05, 20.0], dtype=torch.float64).log()
    for _ in range(60):
        inner_left = right - ratio * (right - left)
        inner_right = left + ratio * (right - left)
        if loss(inner_left) < loss(inner_right):
            right = inner_right
        else:
            left = inner_left
    return float(((left + right) / 2).exp())


def report(
    logits_NC: torch.Tensor, class_N: torch.Tensor, temperature: float = 1.0
) -> dict[str, Any]:
    """Return majority, accuracy, macro-F1, negative log-likelihood, and the confusion.

    The majority is the share of the most frequent class. Rows of the confusion are true classes,
    columns predicted ones.
    """
    scaled_NC = logits_NC.double() / temperature
    predicted_N = scaled_NC.argmax(-1)
    n = len(LABELS)
    confusion_CC = torch.bincount(class_N * n + predicted_N, minlength=n * n).reshape(n, n)
    hit_C = confusion_CC.diagonal()
    predicted_C = confusion_CC.sum(0)
    true_C = confusion_CC.sum(1)
    f1_C = 2 * hit_C.double() / (predicted_C + true_C)
    return {
        "steps": len(class_N),
        "majority": float(true_C.max() / len(class_N)),
        "accuracy": float((predicted_N == class_N).double().mean()),
        # Of the classes that occur or are predicted.
        "macro_f1": float(f1_C.nanmean()),
        "nll": float(F.cross_entropy(scaled_NC, class_N)),
        "confusion": confusion_CC.tolist(),
    }


def evaluate(trainer: Trainer, splits: dict[str, list[Row]]) -> dict[str, Any]:
    """Fit the temperature on the validation split, and report on that and the test split."""
    outputs = {}
    for name in ("validation", "test"):
        if splits[name]:
            prediction = trainer.predict(splits[name], metric_key_prefix=name)
            outputs[name] = (
                torch.as_tensor(prediction.predictions).float(),
                torch.as_tensor(prediction.label_ids),
            )
    temperature = fit_temperature(*outputs["validation"])
    return {
        "temperature": temperature,
        "best_step": trainer.state.best_global_step,
        "steps": trainer.state.global_step,
        "data": {name: counts(rows) for name, rows in splits.items()},
        **{name: report(*output, temperature) for name, output in outputs.items()},
    }
