# SPDX-License-Identifier: Apache-2.0
"""The model card of an exported policy or PRM: what it is, where it comes from, and how a PRM scores."""

from collections.abc import Mapping
from typing import Any

# What the trainer says of a step, beside the folders of policy and PRM.
CARD_FILE = "prime_ext_card.json"

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

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

prm, reference = (AutoModelForCausalLM.from_pretrained(name).eval() for name in (PRM_FOLDER, "{reference}"))
tokenizer = AutoTokenizer.from_pretrained(PRM_FOLDER)


def token_rewards(messages, response):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answer = tokenizer(response, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    ids = torch.tensor([prompt + answer])
    with torch.inference_mode():
        log_probs = [model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for model in (prm, reference)]
    return {beta} * (log_probs[0] - log_probs[1]).gather(-1, torch.tensor(answer)[:, None])[:, 0]


best = max(responses, key=lambda response: token_rewards(messages, response).sum())  # best of N
```
"""

_PLAIN = "the sum over a response orders responses of a prompt."
_WITH_BIAS = "the chance that the whole response is right is sigmoid(beta * sum of q + b), beta = {beta}, b = {bias}."


def card_text(role: str, run: Mapping[str, Any] | None, bias: Mapping[str, Any] | None) -> str | None:
    """The card; None if there is nothing to say.

    Args:
        role: ``actor`` or ``prm``.
        run: what the checkpoint says about its run; None if it says nothing.
        bias: ``beta`` and ``bias`` of a PRM whose bias was trained.
    """
    if run is None and bias is None:
        return None
    title = "Implicit process reward model" if role == "prm" else "Policy"
    tag = "process-reward-model" if role == "prm" else "reinforcement-learning"
    known = {name: "not known" for name in FIELDS} | dict(run or {}) | {"title": title, "tag": tag}
    if bias is not None:
        known["beta"] = bias["beta"]
    text = _HEAD.format(**known)
    for name, value in (known.get("metrics") or {}).items():
        text += f"| `{name}` at this step | {value:.3f} |\n"
    if role != "prm":
        return text
    chance = _WITH_BIAS.format(**bias) if bias is not None and bias["bias"] is not None else _PLAIN
    return text + _PRM.format(**known, chance=chance)


FIELDS = (
    "prime_ext",
    "verl",
    "variant",
    "step",
    "policy",
    "data",
    "prm",
    "reference",
    "reference_mode",
    "loss",
    "beta",
)
