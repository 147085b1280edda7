# SPDX-License-Identifier: Apache-2.0
"""Published process reward models that read a response once and say behind each step whether it was right.

Token classifiers (TRL's PRM trainer, Skywork, Qwen2.5-Math-PRM with its own code), and causal language models that
answer with one of two tokens: ``+`` or ``-`` behind each step tag (Math-Shepherd), or as a turn of a chat in which each
step is a turn of the user (RLHFlow).
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.local import (
    InProcess,
    check_fit,
    device_and_dtype,
    length_buckets,
    padded,
    usable_positions,
)
from prime_ext.step_rm.scorers.protocol import Chain, Key, Outcome, ScoringFailure, StepScores
from prime_ext.utils.text_tokens import Prompt, TextEncoder, TextError, TokenizedSteps, messages_of

# Stands for the content of a turn while the chat template is applied; a character that no text has.
_SLOT = "\ue000"


class TokenClassifier:
    """Probability that a step is right, at the end of each step, from one pass over the response.

    The input is the prompt, and each step followed by the separator, tokenised piece by piece as TRL's PRM trainer
    does; the score is read at the separator's last token, or at the step's without a separator. With the layout
    ``turns`` it is a chat: the question and the first step, the answer, the second step, the answer, ...; the score is
    read where the answer is predicted, and every answer before says that the step was right, as RLHFlow's evaluation
    does (github.com/RLHFlow/RLHF-Reward-Modeling). Special tokens that a step spells out are text.

    Args:
        path: folder, or name on the hub.
        device: ``cpu``, ``cuda``, ...; None: an accelerator if torch sees one.
        dtype: of the weights; None: float32 on the CPU, bfloat16 elsewhere.
        layout: ``plain`` (TRL: the prompt as it is), ``chat`` (through the chat template) or ``turns`` (RLHFlow).
        separator: text behind each step; for TRL usually a line break, for Qwen2.5-Math-PRM ``<extra_0>``; not read
            with ``turns``.
        positive_label: class that means "right".
        answer_tokens: of a causal language model in place of a classifier: what it says of a right and of a wrong step.
        max_length: tokens of an input at most; None: what the model's positions allow.
        trust_remote_code: whether the model may bring its own code.

    Raises:
        StepRMError: the model is no such PRM, or lacks the class or a token.
    """

    def __init__(
        self,
        path: str,
        device: str | torch.device | None = None,
        dtype: str | None = None,
        layout: Literal["plain", "chat", "turns"] = "plain",
        separator: str = "\n",
        positive_label: int = 1,
        answer_tokens: Sequence[str] | None = None,
        max_length: int | None = None,
        trust_remote_code: bool = False,
    ):
        from transformers import AutoTokenizer

        self.where, self.layout, self.answer_tokens = str(path), layout, answer_tokens
        self.device, chosen = device_and_dtype(device, dtype)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        self.encoder = TextEncoder(tokenizer, append_eos=False)
        if layout == "turns" and not (answer_tokens and tokenizer.chat_template):
            raise StepRMError(f"{path}: the layout turns needs answer tokens, such as + and -, and a chat template")
        model = self._load(path, chosen, trust_remote_code)
        self.pad = check_fit(model, tokenizer, 0, self.where)
        limit = usable_positions(model.config)
        self.max_length = int(min(limit, max_length or limit, 2**31))
        self.separator_ids = self.encoder.plain(separator)
        if answer_tokens is None:
            if not 0 <= positive_label < model.config.num_labels:
                raise StepRMError(f"{path}: class {positive_label} is none of its {model.config.num_labels} classes")
            self.columns, self.positive = list(range(model.config.num_labels)), positive_label
        else:
            pieces = [self.encoder.plain(token) for token in answer_tokens]
            if any(len(ids) != 1 for ids in pieces):
                raise StepRMError(f"{path}: {' and '.join(answer_tokens)} must be one token each")
            self.columns, self.positive = [ids[0] for ids in pieces], 0
        self.model = model.eval().requires_grad_(False).to(self.device)

    def _load(self, path: str, dtype: torch.dtype, trust_remote_code: bool) -> Any:
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        named = (config.architectures or [""])[0]
        kind: Any = AutoModelForTokenClassification if named.endswith("ForTokenClassification") else AutoModel
        if self.answer_tokens is not None:
            kind = AutoModelForCausalLM
        elif kind is AutoModel and "AutoModel" not in getattr(config, "auto_map", {}):
            raise StepRMError(f"{path} is a {named or 'model without a name'}, which classifies no tokens")
        return kind.from_pretrained(path, dtype=dtype, trust_remote_code=trust_remote_code)

    def tokens(self, prompt: Prompt, steps: Sequence[str]) -> TokenizedSteps:
        """A response as the model reads it. Raises ``TextError``: messages that the layout cannot show."""
        if self.layout == "turns":
            return self._turns(messages_of(prompt), steps)
        if self.layout == "chat":
            prompt_ids = self.encoder.prompt(prompt)
        elif isinstance(prompt, str):
            prompt_ids = self.encoder.begin() + self.encoder.plain(prompt)
        else:
            raise TextError("the prompt is a list of chat messages, which need the layout chat")
        ids, ends = list(prompt_ids), []
        for step in steps:
            ids += self.encoder.literal(step) + self.separator_ids
            ends.append(len(ids) - 1)
        return TokenizedSteps(ids, len(prompt_ids), tuple(ends))

    def _turns(self, messages: list[dict[str, Any]], steps: Sequence[str]) -> TokenizedSteps:
        """The chat; the end of a step is the last token before its answer."""
        *before, asked = messages
        if asked["role"] != "user":
            raise TextError(f"the prompt ends with a turn of {asked['role']}; the layout turns wants one of the user")
        if not steps:
            return TokenizedSteps([], 0, ())
        turns = [{"role": role, "content": _SLOT} for _ in steps for role in ("user", "assistant")]
        text = self.encoder.tokenizer.apply_chat_template([*before, *turns], tokenize=False)
        pieces = text.split(_SLOT)
        if len(pieces) != len(turns) + 1:
            raise TextError(f"{self.where}: its chat template does not show every turn once")
        contents = [step.strip() for step in steps]
        contents[0] = f"{asked['content']} {contents[0]}"
        ids, ends = [], []
        for content, opening, behind in zip(contents, pieces[::2], pieces[1::2], strict=False):
            ids += self.encoder.plain(opening) + self.encoder.literal(content) + self.encoder.plain(behind)
            ends.append(len(ids) - 1)
            ids.append(self.columns[self.positive])
        return TokenizedSteps(ids, len(self.encoder.plain(pieces[0])), tuple(ends))

    @torch.inference_mode()
    def probabilities(self, batch: Sequence[TokenizedSteps]) -> list[list[float]]:
        """Of each step of each response, in one pass.

        Raises:
            StepRMError: the model gives something else than a number for each class, or one that is not finite.
        """
        id_BT, mask_BT = padded([torch.tensor(tokens.ids) for tokens in batch], self.pad)
        # Models with their own code may return a tuple.
        logits_BTC = self.model(input_ids=id_BT.to(self.device), attention_mask=mask_BT.to(self.device))[0]
        if self.answer_tokens is None and logits_BTC.shape[-1] != len(self.columns):
            raise StepRMError(f"{self.where} gave {logits_BTC.shape[-1]} numbers a token, not {len(self.columns)}")
        right_BT = logits_BTC[..., self.columns].float().softmax(-1)[..., self.positive].cpu()
        found = [right_BT[row, list(tokens.ends)].tolist() for row, tokens in enumerate(batch)]
        if any(value != value for values in found for value in values):
            raise StepRMError(f"{self.where} gave scores that are not finite numbers")
        return found


class TokenClassifierScorer(InProcess):
    """A token classifier as a scorer of steps; what is not right is wrong, and nothing is neutral.

    Args:
        model: the classifier.
        batch_tokens: tokens of a pass at most, padding included; None: 1024 on the CPU, 16384 elsewhere.
        cache_size: responses whose scores are remembered; 0 for none.
    """

    def __init__(self, model: TokenClassifier, batch_tokens: int | None = None, cache_size: int = 0):
        super().__init__(model.device, batch_tokens, cache_size)
        self.model = model

    def score_now(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Scores of responses, in this thread; one that is too long for the model is not scored.

        Raises:
            StepRMError: scores that are not finite.
        """
        encoded = [self.model.tokens(chain.question, chain.steps) for chain in chains]
        keys: list[Key] = [(*tokens.ids, *tokens.ends) for tokens in encoded]
        known = {key: self._cache[key] for key in keys if key in self._cache}
        missing: dict[Key, TokenizedSteps] = {
            key: tokens
            for key, tokens in zip(keys, encoded, strict=True)
            if key not in known and tokens.ends and len(tokens.ids) <= self.model.max_length
        }
        for batch in length_buckets(list(missing), self.batch_tokens):
            known.update(zip(batch, self.model.probabilities([missing[key] for key in batch]), strict=True))
        if self._cache.maxsize:
            self._cache.update(known)
        return [self._outcome(tokens, known.get(key)) for key, tokens in zip(keys, encoded, strict=True)]

    def _outcome(self, tokens: TokenizedSteps, right: list[float] | None) -> Outcome:
        if right is None and tokens.ends:
            return ScoringFailure(f"{len(tokens.ids)} tokens, {self.model.where} takes {self.model.max_length}")
        return StepScores(tuple((1.0 - value, 0.0, value) for value in right or ()))
