# SPDX-License-Identifier: Apache-2.0
"""The model card of an exported folder, README.md: base, method, settings, scores, how to load."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from prime_ext.utils.report_page import Page

FILE = "README.md"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOAD = """\
from transformers import {kind}, AutoTokenizer

model = {kind}.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""
LOAD_POLICY = _LOAD.format(kind="AutoModelForCausalLM")
LOAD_CLASSIFIER = _LOAD.format(kind="AutoModelForSequenceClassification")
USE_POLICY = "python -m eval.run --model FOLDER --tasks gsm8k --output results/gsm8k"
USE_PRM = (
    "python -m eval.prm best-of-n --model FOLDER --input candidates.jsonl --output results/bon"
)
METHOD_OF_IMPLICIT_PRM = (
    "An implicit process reward model (arXiv 2412.01981): a language model trained on labels of"
    " responses. The reward of a token is beta times its log-ratio to the reference; that of a step"
    " is the sum over its tokens."
)


def load_prm(reference: str | None) -> str:
    """Return code that loads an implicit PRM with its reference."""
    shown = json.dumps(reference or "REFERENCE")
    return f"{LOAD_POLICY}\nreference = AutoModelForCausalLM.from_pretrained({shown})"


def build_card(
    title: str,
    method: str,
    base: str | None,
    *,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    scores: Mapping[str, Any],
    load: str,
    use: str,
    tags: Sequence[str],
) -> str:
    """Return a card in Markdown, with the header that the hub reads.

    ``base`` is the model that training began with, None if it is not known. Values that are None
    are left out of the tables; nested ``settings`` get dotted names.
    """
    page = Page(title)
    page.text(method)
    known = {"base model": base, **facts}
    page.table(["", ""], [[name, _show(value)] for name, value in _flatten(known)])
    page.heading("Load and use")
    page.text("FOLDER is the place of these files, or their name on the hub.")
    page.code(load, "python")
    page.code(use, "bash")
    page.heading("Scores")
    if rows := [[name, _show(value)] for name, value in _flatten(scores)]:
        page.table(["score", "value"], rows)
    else:
        page.text("None is known to the program that wrote this folder.")
    if rows := [[name, _show(value)] for name, value in _flatten(settings)]:
        page.heading("Settings of the training")
        page.table(["setting", "value"], rows)
    # The hub refuses a base that is not the name of a model there.
    named = base is not None and _HUB_NAME.fullmatch(base) and not base.startswith(".")
    header = [
        "library_name: transformers",
        *([f"base_model: {base}"] if named else []),
        f"tags: [{', '.join(['prime-ext', *tags])}]",
    ]
    return "\n".join(["---", *header, "---", "", page.markdown()])


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return values with dotted names, without those that are None."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((f"{prefix}{name}", value))
    return pairs
