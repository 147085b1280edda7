# SPDX-License-Identifier: Apache-2.0
"""Published process reward models that read a response once and say behind each step whether it was right.

Token classifiers, and causal language models that answer with one of two tokens: docs/reference/step_rm.md.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from prime_ext.step_rm.description import Input
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.local import check_fit, device_and_dtype, padded, usable_positions
from prime_ext.step_rm.scorers.protocol import Chain, Probabilities, Reading, ScoringFailure
from prime_ext.utils.text_tokens import Prompt, TextEncoder, TextError, TokenizedSteps, messages_of

# Stands for the content of a turn while the chat template is applied; a character that no text has.
_SLOT = "\ue000"


class TokenReader:
    """What such a model reads of a response, and where its answers stand; its weights are somewhere else.

    The input is the prompt, and each step followed by the separator, tokenised piece by piece as TRL's PRM trainer
    does; the score is read at the separator's last token, or at the step's without a separator. With the layout
    ``turns`` it is a chat: the question and the first step, the answer, the second step, the answer, ...; the score is
    read where the answer is predicted, and every answer before says that the step was right, as RLHFlow's evaluation
    does (github.com/RLHFlow/RLHF-Reward-Modeling). Special tokens that a step spells out are text.

    Args:
        path: folder, or name on the hub.
        layout: ``plain`` (TRL: the prompt as it is), ``chat`` (through the chat template) or ``turns`` (RLHFlow).
        separator: text behind each step; not read with ``turns``.
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
        layout: Literal["plain", "chat", "turns"] = "plain",
        separator: str = "\n",
        positive_label: int = 1,
        answer_tokens: Sequence[str] | None = None,
        max_length: int | None = None,
        trust_remote_code: bool = False,
    ):
        from transformers import AutoConfig, AutoTokenizer

        self.where, self.layout, self.answer_tokens = str(path), layout, answer_tokens
        self.trust_remote_code = trust_remote_code
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        self.encoder = TextEncoder(tokenizer, append_eos=False)
        if layout == "turns" and not (answer_tokens and tokenizer.chat_template):
            raise StepRMError(f"{path}: the layout turns needs answer tokens, such as + and -, and a chat template")
        named = (config.architectures or [""])[0]
        self.by_name = named.endswith("ForTokenClassification")
        if answer_tokens is None and not self.by_name and "AutoModel" not in getattr(config, "auto_map", {}):
            raise StepRMError(f"{path} is a {named or 'model without a name'}, which classifies no tokens")
        limit = usable_positions(config)
        self.max_length = int(min(limit, max_length or limit, 2**31))
        self.separator_ids = self.encoder.plain(separator)
        if answer_tokens is None:
            n_classes = config.num_labels
            if not 0 <= positive_label < n_classes:
                raise StepRMError(f"{path}: class {positive_label} is none of its {n_classes} classes")
            self.columns, self.positive = list(range(n_classes)), positive_label
        else:
            pieces = [self.encoder.plain(token) for token in answer_tokens]
            if any(len(ids) != 1 for ids in pieces):
                raise StepRMError(f"{path}: {' and '.join(answer_tokens)} must be one token each")
            self.columns, self.positive = [ids[0] for ids in pieces], 0

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

    def inputs(self, chain: Chain) -> Reading:
        """What the model reads of a response at once; one that is too long for it is not scored."""
        tokens = self.tokens(chain.question, chain.steps)
        if tokens.ends and len(tokens) > self.max_length:
            return ScoringFailure(f"{len(tokens)} tokens, {self.where} takes {self.max_length}")
        return [Input(tuple(tokens.ids), tokens.ends)] if tokens.ends else []

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


class TokenClassifier:
    """Probability that a step is right, at the end of each step, from one pass over the response.

    Args:
        reader: of the model; its weights are read from the same place.
        device, dtype: see :func:`~prime_ext.step_rm.scorers.local.device_and_dtype`.

    Raises:
        StepRMError: the model does not fit its tokenizer, or torch has no such dtype.
    """

    def __init__(self, reader: TokenReader, device: str | torch.device | None = None, dtype: str | None = None):
        from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

        self.reader = reader
        self.device, chosen = device_and_dtype(device, dtype)
        kind: Any = AutoModelForTokenClassification if reader.by_name else AutoModel
        if reader.answer_tokens is not None:
            kind = AutoModelForCausalLM
        model = kind.from_pretrained(reader.where, dtype=chosen, trust_remote_code=reader.trust_remote_code)
        self.pad = check_fit(model, reader.encoder.tokenizer, 0, reader.where)
        self.model = model.eval().requires_grad_(False).to(self.device)

    @torch.inference_mode()
    def probabilities(self, batch: Sequence[TokenizedSteps | Input]) -> list[list[float]]:
        """That each step of each response is right, from one pass.

        Raises:
            StepRMError: the model gives something else than a number for each class, or one that is not finite.
        """
        reader = self.reader
        id_BT, mask_BT = padded([torch.tensor(tokens.ids) for tokens in batch], self.pad)
        # Models with their own code may return a tuple.
        logits_BTC = self.model(input_ids=id_BT.to(self.device), attention_mask=mask_BT.to(self.device))[0]
        if reader.answer_tokens is None and logits_BTC.shape[-1] != len(reader.columns):
            raise StepRMError(f"{reader.where} gave {logits_BTC.shape[-1]} numbers a token, not {len(reader.columns)}")
        right_BT = logits_BTC[..., reader.columns].float().softmax(-1)[..., reader.positive].cpu()
        found = [right_BT[row, list(tokens.ends)].tolist() for row, tokens in enumerate(batch)]
        if any(value != value for values in found for value in values):
            raise StepRMError(f"{reader.where} gave scores that are not finite numbers")
        return found

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """An input for each response."""
        return [self.reader.inputs(chain) for chain in chains]

    def score_inputs(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        """:meth:`probabilities` of the three labels: what is not right is wrong, and nothing is neutral."""
        return [[(1.0 - value, 0.0, value) for value in right] for right in self.probabilities(batch)]
