# SPDX-License-Identifier: Apache-2.0
"""Published process reward models that judge each step of a response where it ends."""

from collections.abc import Sequence
from typing import Any

import torch

from prime_ext.step_rm.description import Input
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.local import StepModel
from prime_ext.step_rm.scorers.protocol import Chain, Reading
from prime_ext.step_rm.scorers.response_reader import ResponseReader
from prime_ext.utils.text_tokens import TokenizedSteps


class TokenClassifier(StepModel):
    """Probability that a step is right, at the end of each step, from one pass over the response.

    Raises ``StepRMError``: the model does not fit its tokenizer, or the dtype is unknown.
    """

    def __init__(
        self,
        reader: ResponseReader,
        device: str | torch.device | None = None,
        dtype: str | None = None,
    ):
        from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

        super().__init__(reader.where, reader.trust_remote_code)
        self.reader = reader
        kind: Any = AutoModelForCausalLM
        if reader.answer_tokens is None:
            kind = AutoModelForTokenClassification if reader.is_classifier else AutoModel
        self._load(kind, reader.encoder.tokenizer, 0, device, dtype)

    @torch.inference_mode()
    def score_inputs(self, batch: Sequence[TokenizedSteps | Input]) -> list[list[float]]:
        """Return the probability that each step is right. Raises ``StepRMError``: not finite."""
        logits_BTC = self._logits(batch)
        columns = self.reader.columns
        if self.reader.answer_tokens is None and logits_BTC.shape[-1] != len(columns):
            raise StepRMError(
                f"{self.where} gave {logits_BTC.shape[-1]} numbers a token, not {len(columns)}"
            )
        # Of a causal model's logits for all tokens of the vocabulary, copy these only.
        right_BT = logits_BTC[..., columns].float().softmax(-1)[..., self.reader.positive].cpu()
        rights = [right_BT[row, list(tokens.ends)].tolist() for row, tokens in enumerate(batch)]
        if any(value != value for values in rights for value in values):
            raise StepRMError(f"{self.where} gave scores that are not finite numbers")
        return rights

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        return self.reader.read(chains)
