# SPDX-License-Identifier: Apache-2.0
"""Published process reward models that read a response once and judge each step where it ends.

Token classifiers, and causal language models that answer with one of two tokens:
docs/reference/step_rm.md.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from prime_ext.step_rm.description import Input
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.local import StepModel, count_positions
from prime_ext.step_rm.scorers.protocol import Chain, Reading, ScoringFailure
from prime_ext.utils.text_tokens import Prompt, TextEncoder, TextError, TokenizedSteps


class TokenClassifier(StepModel):
    """Probability that a step is right, at the end of each step, from one pass over the response.

    The input is the prompt, and each step followed by the separator, tokenized piece by piece as
    TRL's PRM trainer does. The score is read at the last token of the separator, else of the step.
    Special tokens spelled out in a step are text.

    ``answer_tokens`` are what a causal language model, in place of a classifier, answers to a right
    and a wrong step. ``positive_label`` is the class of right ones; ``max_length`` counts tokens,
    None for the model's positions.

    Raises ``StepRMError``: the model is not such a PRM, or lacks the class or a token.
    """

    def __init__(
        self,
        path: str,
        layout: Literal["plain", "chat"] = "plain",
        separator: str = "\n",
        answer_tokens: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        positive_label: int = 1,
        max_length: int | None = None,
    ):
        from transformers import (
            AutoConfig,
            AutoModel,
            AutoModelForCausalLM,
            AutoModelForTokenClassification,
            AutoTokenizer,
        )

        super().__init__(path, trust_remote_code)
        self.layout = layout
        self.answer_tokens = answer_tokens
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        self.encoder = TextEncoder(tokenizer, append_eos=False)
        limit = count_positions(config)
        self.max_length = int(min(limit, max_length or limit, 2**31))
        self.separator_ids = self.encoder.plain(separator)
        kind: Any = AutoModelForCausalLM
        if answer_tokens is None:
            name = (config.architectures or [""])[0]
            n_classes = config.num_labels
            is_classifier = name.endswith("ForTokenClassification")
            kind = AutoModelForTokenClassification if is_classifier else AutoModel
            if not is_classifier and "AutoModel" not in getattr(config, "auto_map", {}):
                raise StepRMError(
                    f"{path} is a {name or 'model without a name'}, which classifies no tokens"
                )
            if not 0 <= positive_label < n_classes:
                raise StepRMError(
                    f"{path}: class {positive_label} is none of its {n_classes} classes"
                )
            self.columns = list(range(n_classes))
            self.positive = positive_label
        else:
            pieces = [self.encoder.plain(token) for token in answer_tokens]
            if any(len(ids) != 1 for ids in pieces):
                raise StepRMError(f"{path}: {' and '.join(answer_tokens)} must be one token each")
            self.columns = [ids[0] for ids in pieces]
            self.positive = 0
        self._load(kind, tokenizer, 0, device, dtype)

    def tokens(self, prompt: Prompt, steps: Sequence[str]) -> TokenizedSteps:
        """Return a response's tokens. Raises ``TextError``: the layout cannot show its messages."""
        if self.layout == "chat":
            prompt_ids = self.encoder.prompt(prompt)
        elif isinstance(prompt, str):
            prompt_ids = self.encoder.begin() + self.encoder.plain(prompt)
        else:
            raise TextError("the prompt is a list of chat messages, which need the layout chat")
        ids = list(prompt_ids)
        ends = []
        for step in steps:
            ids += self.encoder.literal(step) + self.separator_ids
            ends.append(len(ids) - 1)
        return TokenizedSteps(ids, len(prompt_ids), tuple(ends))

    @torch.inference_mode()
    def score_inputs(self, batch: Sequence[TokenizedSteps | Input]) -> list[list[float]]:
        """Return the probability that each step is right. Raises ``StepRMError``: not finite."""
        logits_BTC = self._logits(batch)
        if self.answer_tokens is None and logits_BTC.shape[-1] != len(self.columns):
            raise StepRMError(
                f"{self.where} gave {logits_BTC.shape[-1]} numbers a token, not {len(self.columns)}"
            )
        # Of a causal model's logits for all tokens of the vocabulary, copy these only.
        right_BT = logits_BTC[..., self.columns].float().softmax(-1)[..., self.positive].cpu()
        rights = [right_BT[row, list(tokens.ends)].tolist() for row, tokens in enumerate(batch)]
        if any(value != value for values in rights for value in values):
            raise StepRMError(f"{self.where} gave scores that are not finite numbers")
        return rights

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """Return one input for each response; one that is too long for the model is not scored."""
        readings: list[Reading] = []
        for chain in chains:
            tokens = self.tokens(chain.question, chain.steps)
            if tokens.ends and len(tokens) > self.max_length:
                readings.append(
                    ScoringFailure(f"{len(tokens)} tokens, {self.where} takes {self.max_length}")
                )
            else:
                readings.append([Input(tuple(tokens.ids), tokens.ends)] if tokens.ends else [])
        return readings
