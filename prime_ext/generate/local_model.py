# SPDX-License-Identifier: Apache-2.0
"""What transformers and vLLM need of a model alike: where it is, its tokenizer, its context, its end tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prime_ext.generate.backend import BackendError
from prime_ext.generate.checkpoints import ModelSource, find_model
from prime_ext.generate.http_retry import one_line
from prime_ext.generate.options import BackendOptions
from prime_ext.generate.prompts import PromptEncoder, context_of


class LocalModel:
    """A model that is here, before its weights are loaded.

    Attributes:
        source: where it is.
        config: of transformers.
        encoder: shows it prompts.
        dtype: of weights and computation.
        remote_code: whether code that comes with it is run.

    Raises:
        BackendError: no such model, or options that it does not allow.
    """

    def __init__(self, options: BackendOptions, on_cpu: bool) -> None:
        from transformers import AutoConfig, AutoTokenizer

        self.source: ModelSource = find_model(options.model, options.lora, options.revision)
        self.remote_code = bool(options.trust_remote_code)
        hub: dict[str, Any] = {"revision": self.source.revision, "trust_remote_code": self.remote_code}
        template = None
        if options.chat_template is not None:
            try:
                template = options.chat_template.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise BackendError(f"--chat-template {options.chat_template} cannot be read: {error}") from None
        with loading(self.source.path):
            self.config = AutoConfig.from_pretrained(self.source.path, **hub)
            tokenizer = AutoTokenizer.from_pretrained(self.source.path, **hub)
        context = context_of(self.config, options.model, options.max_model_len)
        self.encoder = PromptEncoder(tokenizer, options.model, context, template)
        chosen = options.dtype or "auto"
        self.dtype = ("float32" if on_cpu else "bfloat16") if chosen == "auto" else chosen

    def description(self) -> dict[str, Any]:
        """For results."""
        known = self.source.description()
        # The commit of a model on the hub, which a branch alone does not tell.
        if commit := getattr(self.config, "_commit_hash", None):
            known["revision"] = commit
        return {**known, "dtype": self.dtype, **self.encoder.description()}


@contextmanager
def loading(path: str) -> Iterator[None]:
    """A block that loads something of a model; what goes wrong in it is one line.

    Raises:
        BackendError: instead of what transformers, peft or the hub raise.
    """
    try:
        yield
    except BackendError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, KeyError) as error:
        raise BackendError(one_line(f"{path} cannot be loaded: {error}")) from error
