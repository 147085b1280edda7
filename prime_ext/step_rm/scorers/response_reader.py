# SPDX-License-Identifier: Apache-2.0
"""Inputs of published process reward models, which read a response once.

Token classifiers, and causal language models that answer with one of two tokens:
docs/reference/step_rm.md.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from prime_ext.step_rm.description import Input
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, Reading, ScoringFailure
from prime_ext.utils.report_page import join_lines
from prime_ext.utils.text_tokens import Prompt, TextEncoder, TextError, TokenizedSteps


def count_positions(config: Any) -> float:
    """Count a model's positions; RoBERTa and its kin lose those up to the padding token's."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return math.inf
    shifted = config.model_type in (
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "camembert",
        "mpnet",
        "longformer",
    )
    return positions - (config.pad_token_id + 1 if shifted else 0)


class ResponseReader:
    """Reader of responses for the model in a folder, whose weights are not needed.

    The input is the prompt, and each step followed by the separator, tokenized piece by piece as
    TRL's PRM trainer does. The score is read at the last token of the separator, else of the step.
    Special tokens spelled out in a step are text.

    ``answer_tokens`` are what a causal language model, in place of a classifier, answers to a right
    and a wrong step. ``positive_label`` is the class of right ones; ``max_length`` counts tokens,
    None for the model's positions. ``columns`` are the classes, or the two tokens' ids, and
    ``positive`` is the index of the right one in them.

    Raises ``StepRMError``: the model is not such a PRM, or lacks the class or a token.
    """

    def __init__(
        self,
        path: str,
        layout: Literal["plain", "chat"] = "plain",
        separator: str = "\n",
        answer_tokens: Sequence[str] | None = None,
        trust_remote_code: bool = False,
        positive_label: int = 1,
        max_length: int | None = None,
    ):
        from transformers import AutoConfig, AutoTokenizer

        self.where = path
        self.layout = layout
        self.answer_tokens = answer_tokens
        self.trust_remote_code = trust_remote_code
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
            self.encoder = TextEncoder(tokenizer, append_eos=False)
        except (OSError, ValueError, TextError) as error:
            raise StepRMError(join_lines(f"{path}: {error}")) from error
        limit = count_positions(config)
        self.max_length = int(min(limit, max_length or limit, 2**31))
        self.separator_ids = self.encoder.plain(separator)
        name = (config.architectures or [""])[0]
        self.is_classifier = name.endswith("ForTokenClassification")
        if answer_tokens is None:
            n_classes = config.num_labels
            if not self.is_classifier and "AutoModel" not in getattr(config, "auto_map", {}):
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
