# SPDX-License-Identifier: Apache-2.0
"""What transformers and vLLM need of a model alike: where it is, its tokenizer, its context, and what it is shown."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jinja2
from cachetools import LRUCache

from prime_ext.generate.backend import BackendError, BackendOptions, Request, one_line
from prime_ext.generate.checkpoints import ModelSource, find_model

# Requests for one problem follow each other, so a few prompts are enough.
_REMEMBERED = 1024


class LocalModel:
    """A model that is here, before its weights are loaded.

    Attributes:
        source: where it is.
        name: as it was asked for, for messages.
        config: of transformers.
        tokenizer: of transformers.
        context: tokens of prompt and response together.
        chat_template: instead of the tokenizer's; None for that one.
        dtype: of weights and computation.
        remote_code: whether code that comes with it is run.

    Raises:
        BackendError: no such model, or options that it does not allow.
    """

    def __init__(self, options: BackendOptions, on_cpu: bool) -> None:
        from transformers import AutoConfig, AutoTokenizer

        self.name = options.model
        self.source: ModelSource = find_model(options.model, options.lora, options.revision)
        self.remote_code = bool(options.trust_remote_code)
        with loading(f"--chat-template {options.chat_template}"):
            file = options.chat_template
            self.chat_template = None if file is None else file.read_text(encoding="utf-8")
        hub: dict[str, Any] = {"revision": self.source.revision, "trust_remote_code": self.remote_code}
        with loading(self.source.path):
            self.config = AutoConfig.from_pretrained(self.source.path, **hub)
            self.tokenizer = AutoTokenizer.from_pretrained(self.source.path, **hub)
        self.context = _context(self.config, self.name, options.max_model_len)
        chosen = options.dtype or "auto"
        self.dtype = ("float32" if on_cpu else "bfloat16") if chosen == "auto" else chosen
        self._ids: LRUCache[Any, list[int]] = LRUCache(_REMEMBERED)

    def description(self) -> dict[str, Any]:
        """For results."""
        known = self.source.description()
        # The commit of a model on the hub, which a branch alone does not tell.
        if commit := getattr(self.config, "_commit_hash", None):
            known["revision"] = commit
        known |= {"dtype": self.dtype, "context": self.context}
        if self.chat_template is not None:
            known["chat_template_sha256"] = hashlib.sha256(self.chat_template.encode()).hexdigest()[:16]
        return known

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
        chat = [dict(message) for message in prompt]
        options = {"chat_template": self.chat_template, "tokenize": False, "add_generation_prompt": True}
        try:
            return str(self.tokenizer.apply_chat_template(chat, **options))
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise BackendError(one_line(f"the chat template of {self.name} refuses the chat: {error}")) from None

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


def _context(config: Any, name: str, max_model_len: int | None) -> int:
    """Tokens of prompt and response together that a model can hold, or :class:`BackendError`."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) and max_model_len is None:
        raise BackendError(f"the config.json of {name} does not tell its context; give --max-model-len")
    if isinstance(positions, int) and max_model_len is not None and max_model_len > positions:
        raise BackendError(f"--max-model-len {max_model_len} is more than the {positions} positions of {name}")
    return max_model_len if max_model_len is not None else int(positions)  # type: ignore[arg-type]


@contextmanager
def loading(name: str) -> Iterator[None]:
    """A block that loads something of a model; what goes wrong in it is one line.

    Raises:
        BackendError: instead of what transformers, peft, vLLM or the hub raise.
    """
    try:
        yield
    except BackendError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, KeyError) as error:
        raise BackendError(one_line(f"{name} cannot be loaded: {error}")) from error
