# SPDX-License-Identifier: Apache-2.0
"""The model card of an exported policy or PRM: what it is, where it comes from, and how a PRM scores."""

import os
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prime_ext.utils.files import read_json

# What the trainer says of a step, beside the folders of policy and PRM.
CARD_FILE = "prime_ext_card.json"
# What an exported PRM says, beside its weights: how it was trained, and what is needed to score.
FILE = "prime_ext_prm.json"

_HEAD = """\
---
library_name: transformers
tags: [{tag}]
---
# {title}

| | |
| --- | --- |
| trained by | prime_ext {prime_ext}, verl {verl}; variant {variant}, step {step} |
| policy started from | `{policy}` |
| prompts | {data} |
"""

_PRM = """\
| PRM started from | `{prm}` |
| reference | `{reference}` (`prm.reference={reference_mode}`) |
| loss | `{loss}` |

An implicit process reward model (PRIME, arXiv 2502.01456): with q_t = log pi_prm - log pi_ref at a token of the
response, the token is worth beta * q_t, and {chance}

`python -m eval.prm` of prime_ext reads reference and beta from `{file}`. With transformers alone, in this folder:

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

messages = [{{"role": "user", "content": "What is 1 + 1?"}}]
responses = ["2", "3"]

models = [AutoModelForCausalLM.from_pretrained(name).eval() for name in {names}]
tokenizer = AutoTokenizer.from_pretrained(".")


def token_rewards(messages, response):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answer = tokenizer(response, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    ids = torch.tensor([prompt + answer])
    with torch.inference_mode():
        log_probs = [model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for model in models]
    return {beta} * ({difference}).gather(-1, torch.tensor(answer)[:, None])[:, 0]


best = max(responses, key=lambda response: token_rewards(messages, response).sum())  # best of N
print(best)
```
"""

_PLAIN = "the sum over a response orders responses of a prompt."
_MOVED = """\
the sum over a response orders responses of a prompt. It is no logit: in training the reference was a later policy at
every step, and here it is the model that the PRM started from."""
_WITH_BIAS = "the chance that the whole response is right is sigmoid(beta * sum of q + b), beta = {beta}, b = {bias}."


def model_name(path: str) -> str:
    """A model's hub name as it is, a local folder as an absolute path."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def name_from(folder: Path, model: str) -> str:
    """A model as seen from a folder: the relative path of a local one, so that both can be moved together."""
    return os.path.relpath(model, folder.resolve()) if Path(model).is_absolute() else model


def read_description(model: str) -> dict[str, Any]:
    """What :data:`FILE` says of a model, its reference as something to load; empty for models without it."""
    file = Path(model) / FILE
    if not file.is_file():
        return {}
    found = read_json(file)
    beside = Path(model, found.get("reference") or "")
    return found | {"reference": str(beside.resolve())} if found.get("reference") and beside.is_dir() else found


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {name: version(name) for name in ("prime-ext", "verl", "torch", "transformers")}


def prm_description(run: Mapping[str, Any], bias: Mapping[str, Any] | None, folder: Path) -> dict[str, Any]:
    """What is needed to score with a PRM that was trained online (:data:`FILE`)."""
    kept = {name: run.get(name) for name in ("beta", "loss", "reference_mode", "reference_moves", "variant", "step")}
    first, reference = (name_from(folder, run[name]) for name in ("prm", "reference"))
    b = None if bias is None or kept["reference_moves"] else bias["bias"]
    return kept | {"bias": b, "reference": reference, "initial_model": first, "versions": versions()}


def card_text(
    role: str, run: Mapping[str, Any] | None, bias: Mapping[str, Any] | None, folder: Path = Path()
) -> str | None:
    """The card; None if there is nothing to say.

    Args:
        role: ``actor`` or ``prm``.
        run: what the checkpoint says about its run; None if it says nothing.
        bias: ``beta`` and ``bias`` of a PRM whose bias was trained.
        folder: where the card will be.
    """
    if run is None and bias is None:
        return None
    title = "Implicit process reward model" if role == "prm" else "Policy"
    tag = "process-reward-model" if role == "prm" else "reinforcement-learning"
    known: dict[str, Any] = defaultdict(lambda: "not known", run or {}, title=title, tag=tag, file=FILE)
    for model in ("policy", "prm", "reference"):
        known[model] = name_from(folder, known[model])
    if bias is not None:
        known["beta"] = bias["beta"]
    text = _HEAD.format_map(known)
    for name, value in ((run or {}).get("metrics") or {}).items():
        text += f"| `{name}` at this step | {value:.3f} |\n"
    if role != "prm":
        return text
    known["chance"] = _PLAIN
    if known["reference_moves"] is True:
        known["chance"] = _MOVED
    elif bias is not None and bias["bias"] is not None:
        known["chance"] = _WITH_BIAS.format(**bias)
    known["names"] = '["."]' if known["reference"] == "none" else f'[".", "{known["reference"]}"]'
    known["difference"] = "log_probs[0]" if known["reference"] == "none" else "log_probs[0] - log_probs[1]"
    return text + _PRM.format_map(known)
