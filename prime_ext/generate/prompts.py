# SPDX-License-Identifier: Apache-2.0
"""What a model on this machine is shown: chats through its template, texts as they are."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from cachetools import LRUCache

from prime_ext.generate.backend import BackendError, Request
from prime_ext.generate.http_retry import one_line

# Requests for one problem follow each other, so a few prompts are enough.
_REMEMBERED = 1024


class PromptEncoder:
    """Prompts as text and token ids.

    Args:
        tokenizer: of the model.
        name: of the model, for messages.
        context: tokens of prompt and response together.
        chat_template: instead of the tokenizer's; None for that one.
    """

    def __init__(self, tokenizer: Any, name: str, context: int, chat_template: str | None = None) -> None:
        self.tokenizer, self.name, self.context = tokenizer, name, context
        self.chat_template = chat_template
        self._ids: LRUCache[Any, list[int]] = LRUCache(_REMEMBERED)

    def description(self) -> dict[str, Any]:
        """Context, and the template if it is not the model's own."""
        own = {"context": self.context}
        if self.chat_template is None:
            return own
        return {**own, "chat_template_sha256": hashlib.sha256(self.chat_template.encode()).hexdigest()[:16]}

    def text(self, prompt: Sequence[Mapping[str, str]] | str) -> str:
        """The prompt without what the tokenizer puts before a text.

        Raises:
            BackendError: a chat for a model without a template, or one that the template refuses.
        """
        if isinstance(prompt, str):
            return prompt
        if self.chat_template is None and not self.tokenizer.chat_template:
            raise BackendError(
                f"{self.name} has no chat template; give one with --chat-template FILE, or use a raw prompt"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in prompt],
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=True,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise BackendError(one_line(f"the chat template of {self.name} refuses the chat: {error}")) from None
        return str(text)

    def ids(self, prompt: Sequence[Mapping[str, str]] | str) -> list[int]:
        """The prompt as token ids. Of raw texts the tokenizer's own first token is added; templates bring theirs.

        Raises:
            BackendError: as :meth:`text`.
        """
        key = prompt if isinstance(prompt, str) else tuple(tuple(sorted(message.items())) for message in prompt)
        if key not in self._ids:
            text = self.text(prompt)
            self._ids[key] = self.tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"]
        return self._ids[key]

    def shown(self, prompt: Sequence[Mapping[str, str]] | str) -> str:
        """Exactly what the model sees, special tokens included.

        Raises:
            BackendError: as :meth:`text`.
        """
        text, first = self.text(prompt), self.tokenizer.bos_token
        starts = self.ids(prompt)[:1] == [self.tokenizer.bos_token_id] and first is not None
        return first + text if starts and not text.startswith(first) else text

    def problem(self, request: Request) -> str | None:
        """Why the model cannot answer a request, in one line; None if it can."""
        try:
            n_prompt = len(self.ids(request.prompt))
        except BackendError as error:
            return str(error)
        if n_prompt == 0:
            return "the prompt has no tokens"
        n_new = request.sampling.max_new_tokens
        if n_prompt + n_new <= self.context:
            return None
        return (
            f"{n_prompt} tokens of prompt and {n_new} new ones do not fit into the context of {self.context} tokens of "
            f"{self.name}; ask for at most {max(0, self.context - n_prompt)} new ones, or shorten the prompt"
        )

    def check(self, requests: Sequence[Request]) -> None:
        """Raises :class:`BackendError` for the first request that the model cannot answer."""
        for request in requests:
            if (problem := self.problem(request)) is not None:
                raise BackendError(f"request {request.key}: {problem}")


def context_of(config: Any, name: str, max_model_len: int | None) -> int:
    """Tokens of prompt and response together that a model can hold.

    Raises:
        BackendError: more are asked for than it has positions, or it does not say how many it has.
    """
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) and max_model_len is None:
        raise BackendError(f"the config.json of {name} does not tell its context; give --max-model-len")
    if isinstance(positions, int) and max_model_len is not None and max_model_len > positions:
        raise BackendError(f"--max-model-len {max_model_len} is more than the {positions} positions of {name}")
    return max_model_len if max_model_len is not None else int(positions)  # type: ignore[arg-type]
