# SPDX-License-Identifier: Apache-2.0
"""Models on this machine (transformers, vLLM): Hugging Face folders, hub ids, verl checkpoints."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from cachetools import LRUCache

from prime_ext.generate.backend import Backend, BackendError, Request, split_begun
from prime_ext.generate.export import LORA_META, export, find_checkpoint, shard_files
from prime_ext.utils.files import digest_files
from prime_ext.utils.hub import use_cache_without_hub
from prime_ext.utils.report_page import join_lines
from prime_ext.utils.text_tokens import find_unread_option

EXPORTED = "exported_hf"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "consolidated*.safetensors")
# Prompts: as many as a benchmark has, since each is needed several times.
_REMEMBERED = 16_384


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a Hugging Face folder that are not empty."""
    return sorted(
        file for pattern in _WEIGHTS for file in folder.glob(pattern) if file.stat().st_size
    )


def find_model(model: str) -> str:
    """Return the Hugging Face folder or hub id of what a user names. Raises ``BackendError``.

    A checkpoint of verl, named as in :mod:`prime_ext.generate.export`, is exported.
    """
    folder = Path(model).expanduser()
    if not folder.exists():
        if _HUB_ID.fullmatch(model):
            return model
        raise BackendError(
            f"--model {model} does not exist; give a folder, or a hub id such as"
            " Qwen/Qwen2.5-0.5B-Instruct"
        )
    checkpoint = find_checkpoint(folder)
    if checkpoint is not None:
        ready = checkpoint / "huggingface"
        # With LoRA, verl's hf_model holds names of the wrapped model, which nothing else can load.
        if not weight_files(ready) or (checkpoint / LORA_META).is_file():
            ready = _export_once(checkpoint)
        return str(ready)
    if not (folder / "config.json").is_file() or not weight_files(folder):
        raise BackendError(
            f"{folder} is neither a Hugging Face model (config.json, {_WEIGHTS[0]}) nor a"
            " checkpoint of verl (fsdp_config.json)"
        )
    return str(folder)


def _export_once(folder: Path) -> Path:
    """Export a checkpoint into its folder, once, and again when its files have changed."""
    shards = shard_files(folder)
    target = folder / EXPORTED
    if not target.is_dir() or target.stat().st_mtime < max(file.stat().st_mtime for file in shards):
        print(f"exporting {folder} ({len(shards)} shards) to {target}", file=sys.stderr, flush=True)
        export(folder, target)
    return target


@contextmanager
def catch_loading_errors(name: str) -> Iterator[None]:
    """Turn errors of transformers, vLLM or the hub into a ``BackendError`` of one line."""
    try:
        yield
    except BackendError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, KeyError) as error:
        raise BackendError(join_lines(f"{name} cannot be loaded: {error}")) from error


class LocalBackend(Backend):
    """A model on this machine, without its weights.

    ``hub`` has keywords of transformers' loaders, ``chat_template_kwargs`` variables of the chat
    template; ``context`` counts tokens of prompt and response together. Raises ``BackendError``:
    there is no such model, or it does not allow the options.
    """

    kind: str

    def __init__(
        self,
        model: str,
        on_cpu: bool,
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from transformers import AutoConfig, AutoTokenizer

        if revision is not None and Path(model).expanduser().exists():
            raise BackendError(
                f"--revision {revision} is for models on the hub; {model} is a folder"
            )
        self.name = model
        self.path = find_model(model)
        use_cache_without_hub(self.path)
        self.hub = {"revision": revision, "trust_remote_code": trust_remote_code}
        with catch_loading_errors(self.path):
            self.config = AutoConfig.from_pretrained(self.path, **self.hub)
            self.tokenizer = AutoTokenizer.from_pretrained(self.path, **self.hub)
        self.chat_options = dict(chat_template_kwargs or {})
        unread = find_unread_option(self.tokenizer, self.chat_options)
        if unread is not None:
            raise BackendError(
                f"--chat-template-kwargs: the chat template of {model} does not read {unread!r};"
                " correct the name, or leave it out"
            )
        self.context = _context(self.config, model, max_model_len)
        self.dtype = ("float32" if on_cpu else "bfloat16") if dtype == "auto" else dtype
        self._ids: LRUCache[Any, list[int]] = LRUCache(_REMEMBERED)

    def description(self) -> dict[str, Any]:
        # The commit of a model on the hub, which a branch alone does not determine.
        revision = getattr(self.config, "_commit_hash", None) or self.hub["revision"]
        known = {"backend": self.kind, "model": self.name, "revision": revision}
        if Path(self.path).is_dir():
            known["weights"] = digest_files(weight_files(Path(self.path)))
        chat = {"chat_template_kwargs": self.chat_options} if self.chat_options else {}
        return known | {"dtype": self.dtype, "context": self.context, **chat}

    def text(self, prompt: Sequence[Mapping[str, str]] | str) -> str:
        """Return the prompt as text, without what a tokenizer puts before a text.

        Raises ``BackendError``: no template fits the chat.
        """
        prompt, begun = split_begun(prompt)
        if isinstance(prompt, str):
            return prompt
        if not self.tokenizer.chat_template:
            raise BackendError(
                f"{self.name} has no chat template; save one with its tokenizer, or use a raw"
                " prompt"
            )
        chat = [dict(message) for message in prompt]
        try:
            text = self.tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True, **self.chat_options
            )
            return f"{text}{begun}"
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise BackendError(
                join_lines(f"the chat template of {self.name} refuses the chat: {error}")
            ) from None

    def ids(self, request: Request) -> list[int]:
        """Return the prompt's token ids (raw text: with special tokens). Raises as :meth:`text`."""
        prompt, begun = split_begun(request.prompt)
        key = (
            prompt
            if isinstance(prompt, str)
            else tuple(tuple(sorted(message.items())) for message in prompt)
        )
        if (key, begun) not in self._ids:
            encode = partial(self.tokenizer, add_special_tokens=isinstance(prompt, str))
            ids = encode(self.text(prompt))["input_ids"]
            if begun:
                # As in training: a response is tokenized alone, and special tokens in it are text.
                encode = partial(encode, split_special_tokens=True)
                ids = [*ids, *encode(begun)["input_ids"]]
            self._ids[key, begun] = ids
        return self._ids[key, begun]

    def render_prompt(self, request: Request) -> str:
        text = self.text(request.prompt)
        first = self.tokenizer.bos_token
        starts = self.ids(request)[:1] == [self.tokenizer.bos_token_id] and first is not None
        return first + text if starts and not text.startswith(first) else text

    def check(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if (problem := self.problem(request)) is not None:
                raise BackendError(f"request {request.key}: {problem}")

    def problem(self, request: Request) -> str | None:
        """Return in one line why a request cannot be answered, None if it can."""
        try:
            n_prompt = len(self.ids(request))
        except BackendError as error:
            return str(error)
        n_new = request.sampling.max_new_tokens
        if n_prompt == 0:
            return "the prompt has no tokens"
        if n_prompt + n_new <= self.context:
            return None
        return (
            f"{n_prompt} tokens of prompt and {n_new} new ones do not fit into the context of"
            f" {self.context} tokens of {self.name}; ask for at most"
            f" {max(0, self.context - n_prompt)} new ones, or shorten the prompt"
        )


def _context(config: Any, name: str, max_model_len: int | None) -> int:
    """Return how many tokens of prompt and response fit a model. Raises ``BackendError``."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        if max_model_len is None:
            raise BackendError(
                f"the config.json of {name} does not tell its context; give --max-model-len"
            )
        return max_model_len
    if max_model_len is not None and max_model_len > positions:
        raise BackendError(
            f"--max-model-len {max_model_len} is more than the {positions} positions of {name}"
        )
    return max_model_len or positions
