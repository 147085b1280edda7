# SPDX-License-Identifier: Apache-2.0
"""Sampling with a key-value cache, and the log-probabilities of what was sampled. Any causal model of transformers.

Axes as in ``prime_ext.algorithms``, and ``P`` tokens of a prompt, left-padded; responses are right-padded.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache


class Rollouts(NamedTuple):
    """Prompts and responses; the first ``<eos>`` of a response is its last valid token."""

    prompt_BP: torch.Tensor
    prompt_mask_BP: torch.Tensor
    response_BT: torch.Tensor
    mask_BT: torch.Tensor
    outcome_B: torch.Tensor | None = None  # from here on: once they are judged
    group_B: torch.Tensor | None = None
    step_label_BT: torch.Tensor | None = None  # of its steps, for diagnosis and the oracle
    is_result_BT: torch.Tensor | None = None
    reference_BT: torch.Tensor | None = None  # log-probabilities under the PRM's reference

    def rows(self, index_B: torch.Tensor) -> "Rollouts":
        return Rollouts(*(None if part is None else part[index_B] for part in self))

    @classmethod
    def joined(cls, several: Sequence["Rollouts"]) -> "Rollouts":
        return cls(*(None if parts[0] is None else torch.cat(parts) for parts in zip(*several, strict=True)))

    def model_inputs(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """Token ids of the positions ``[start, stop)``, and what a model must know about left padding."""
        ids_BL = torch.cat([self.prompt_BP, self.response_BT], 1)[:, start:stop]
        if self.prompt_mask_BP.all():
            return {"input_ids": ids_BL}
        # Right padding needs no mask: no valid token comes after it.
        seen_BL = torch.cat([self.prompt_mask_BP, torch.ones_like(self.mask_BT)], 1)[:, :stop].long()
        position_BL = (seen_BL.cumsum(1) - 1).clamp_min(0)[:, start:]
        return {"input_ids": ids_BL, "attention_mask": seen_BL, "position_ids": position_BL}


@torch.no_grad()
def sample(
    model: torch.nn.Module, prompt_BP: torch.Tensor, pad: int, eos: int, limit: int, generator: torch.Generator
) -> Rollouts:
    """One response to each left-padded prompt at temperature 1; ``limit`` is T, whatever the longest response is."""
    width = prompt_BP.shape[1]
    response_BT = prompt_BP.new_full((len(prompt_BP), limit), pad)
    rollouts = Rollouts(prompt_BP, prompt_BP != pad, response_BT, torch.zeros_like(response_BT, dtype=torch.bool))
    cache, running_B = DynamicCache(config=model.config), torch.ones_like(prompt_BP[:, 0], dtype=torch.bool)
    for t in range(limit):
        inputs = rollouts.model_inputs(0 if t == 0 else width + t - 1, width + t)
        logits_BV = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        token_B = torch.multinomial(logits_BV.float().softmax(-1), 1, generator=generator)[:, 0]
        rollouts.response_BT[:, t] = torch.where(running_B, token_B, pad)
        rollouts.mask_BT[:, t] = running_B
        running_B = running_B & (token_B != eos)
        if not running_B.any():
            break
    return rollouts


def response_logits(model: torch.nn.Module, rollouts: Rollouts) -> torch.Tensor:
    """Logits ``(B, T, V)`` from which each token of the responses was drawn, in one pass."""
    n_tokens = rollouts.response_BT.shape[1]
    return model(**rollouts.model_inputs(stop=-1), use_cache=False, logits_to_keep=n_tokens).logits


def chosen_log_probs(logits_BTV: torch.Tensor, rollouts: Rollouts) -> torch.Tensor:
    """log pi(y_t | x, y_<t) of the response tokens, ``(B, T)`` float32."""
    return logits_BTV.float().log_softmax(-1).gather(-1, rollouts.response_BT[..., None])[..., 0]
