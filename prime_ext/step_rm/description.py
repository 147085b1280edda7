# SPDX-License-Identifier: Apache-2.0
"""What training writes beside a step reward model, and what a scorer reads of it."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_ext.step_rm.labels import StepRMError, class_order
from prime_ext.step_rm.pairs import PairFormat

FILE = "prime_ext_step_rm.json"


@dataclass(frozen=True)
class Description:
    """How to use a model.

    Attributes:
        pair_format: what it reads.
        temperature: its logits are divided by this.
        order: label of each of its classes.
        training: settings, data and versions; for people.
    """

    pair_format: PairFormat
    temperature: float
    order: tuple[int, int, int]
    training: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        record = {
            "pair_format": self.pair_format.as_dict(),
            "temperature": self.temperature,
            "labels": list(self.order),
            "training": self.training,
        }
        return json.dumps(record, indent=2) + "\n"


def read_description(path: str | Path, pair_format: PairFormat | None = None) -> Description:
    """The description of a model in a folder.

    Args:
        path: folder with ``config.json``.
        pair_format: for a model that was trained elsewhere and has no description; refused if it says otherwise.

    Raises:
        StepRMError: no such model, no three classes with a label map, a broken description, or one that contradicts.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise StepRMError(f"{path} is no model folder: it has no config.json")
    config = _json(folder / "config.json")
    order = class_order(config.get("id2label"), str(path))
    if not (folder / FILE).is_file():
        if pair_format is None:
            raise StepRMError(
                f"{path} has no {FILE}, which says what the model reads; give the format (layout=text for PSPO's)"
            )
        return Description(pair_format, 1.0, order)
    record = _json(folder / FILE)
    try:
        own = PairFormat(**record["pair_format"])
        temperature = float(record["temperature"])
    except (KeyError, TypeError, ValueError) as error:
        raise StepRMError(f"{folder / FILE} is broken: {error!r}") from error
    if not (math.isfinite(temperature) and temperature > 0):
        raise StepRMError(f"{folder / FILE}: temperature={temperature} must be a number > 0")
    if list(order) != record.get("labels"):
        raise StepRMError(f"{path}: config.json has the labels {list(order)}, {FILE} {record.get('labels')}")
    if pair_format is not None and pair_format != own:
        changed = [key for key, value in own.as_dict().items() if pair_format.as_dict()[key] != value]
        raise StepRMError(
            f"{path} was trained with {changed[0]}={own.as_dict()[changed[0]]!r}, not "
            f"{pair_format.as_dict()[changed[0]]!r}; leave the format to the model"
        )
    return Description(own, temperature, order, record.get("training", {}))


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StepRMError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StepRMError(f"{path} is no JSON object")
    return value
