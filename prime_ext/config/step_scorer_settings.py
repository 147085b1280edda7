# SPDX-License-Identifier: Apache-2.0
"""Which scorer, and how: one section of the configuration, checked before Ray starts. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.config.checks import SettingsError, boolean, build, choice, number, whole_number

SECTION = "step_scorer"
KINDS = ("local", "server")
INPUTS = ("ids", "text")
# Wrong, neutral, right.
LABELS = (-1, 0, 1)


@dataclass(frozen=True)
class ScorerSettings:
    """The section ``step_scorer``."""

    kind: str
    """``local``: a model in this process. ``server``: ``/classify`` of vLLM, verl's reward-model pool or any URL."""
    model_path: str | None
    """Folder of the step reward model; a server's as well, for its tokenizer and format (not with inputs=text)."""
    pair_format: Mapping[str, Any] | None
    """Fields of ``prime_ext.step_rm.pairs.PairFormat`` for a model without a description; None to read it."""
    cache_size: int
    """Steps whose scores are remembered."""
    device: str | None
    """Of the local model: cpu, cuda, ...; None for an accelerator if there is one."""
    dtype: str | None
    """Of the local model; None for float32 on the CPU and bfloat16 elsewhere."""
    batch_tokens: int | None
    """Tokens of a pass of the local model, padding included; None for 1024 on the CPU and 16384 elsewhere."""
    trust_remote_code: bool
    """Whether the model may bring its own code."""
    address: str | None
    """host:port or URL of the server; None for the router of verl's reward-model pool."""
    inputs: str
    """``ids`` sends token ids, ``text`` leaves tokenising to the server."""
    labels: list[int] | None
    """Label of each class of the served model, with inputs=text; None for -1, 0, 1."""
    served_model: str | None
    """Name the server knows the model by; None for its only one."""
    batch_size: int
    """Steps per request."""
    concurrency: int
    """Requests at a time."""
    timeout_seconds: float
    """For one attempt."""
    attempts: int
    """How often a request is made before the response counts as not scored."""
    backoff_seconds: float
    """Pause before the second attempt; doubles."""
    api_key_variable: str | None
    """Environment variable with the server's key."""

    def __post_init__(self) -> None:
        choice(f"{SECTION}.kind", self.kind, KINDS)
        choice(f"{SECTION}.inputs", self.inputs, INPUTS)
        boolean(f"{SECTION}.trust_remote_code", self.trust_remote_code)
        whole_number(f"{SECTION}.cache_size", self.cache_size, 0)
        if self.batch_tokens is not None:
            whole_number(f"{SECTION}.batch_tokens", self.batch_tokens, 1)
        for key in ("batch_size", "concurrency", "attempts"):
            whole_number(f"{SECTION}.{key}", getattr(self, key), 1)
        number(f"{SECTION}.timeout_seconds", self.timeout_seconds, 0, open_low=True)
        number(f"{SECTION}.backoff_seconds", self.backoff_seconds, 0)
        for key in ("model_path", "device", "dtype", "address", "served_model", "api_key_variable"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, str) or not value):
                raise SettingsError(f"{SECTION}.{key}={value!r} must be a text or null")
        if self.labels is not None and (not isinstance(self.labels, list) or sorted(self.labels) != sorted(LABELS)):
            raise SettingsError(f"{SECTION}.labels={self.labels!r} must be -1, 0 and 1 in the order of the classes")
        if self.needs_model and self.model_path is None:
            raise SettingsError(f"{SECTION}.model_path is missing; give the folder of the step reward model")
        self._check_unread()

    @property
    def needs_model(self) -> bool:
        return self.kind == "local" or self.inputs == "ids"

    def _check_unread(self) -> None:
        """Values that would be ignored."""
        texts = self.kind == "server" and self.inputs == "text"
        if self.labels is not None and not texts:
            raise SettingsError(f"{SECTION}.labels={self.labels} is for inputs=text; the model has its own label map")
        if texts and self.model_path is not None:
            raise SettingsError(
                f"{SECTION}.model_path={self.model_path!r} is not read with inputs=text; set it to null"
            )
        if self.kind == "local" and self.address is not None:
            raise SettingsError(f"{SECTION}.address={self.address!r} is not read with kind=local; set it to null")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "ScorerSettings":
        """Build from the resolved section. Raises ``SettingsError``."""
        return build(cls, values, SECTION)
