# SPDX-License-Identifier: Apache-2.0
"""Which scorer, and how: one section of the configuration, checked before Ray starts. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.settings_checks import SettingsError, boolean, build, choice, number, whole_number
from prime_ext.step_rm.description import Description, read_description
from prime_ext.step_rm.labels import LABELS, StepRMError
from prime_ext.step_rm.pairs import PairFormat
from prime_ext.step_rm.scorers.protocol import StepScorer

SECTION = "step_scorer"
KINDS = ("local", "server")
INPUTS = ("ids", "text")


@dataclass(frozen=True)
class ScorerSettings:
    """The section ``step_scorer``."""

    kind: str
    """``local``: a model in this process. ``server``: ``/classify`` of vLLM, verl's reward-model pool or any URL."""
    model_path: str | None
    """Folder of the step reward model; a server's as well, for its tokenizer and format (not with inputs=text)."""
    pair_format: Mapping[str, Any] | None
    """Fields of :class:`PairFormat`, for a model without a description of its own; None to read the description."""
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
        try:
            self.format_given()
        except StepRMError as error:
            raise SettingsError(f"{SECTION}.model_path: {error}") from error

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

    def format_given(self) -> PairFormat | None:
        """The pair format of the settings. Raises ``StepRMError``."""
        if self.pair_format is None:
            return None
        unknown = sorted(set(self.pair_format) - set(PairFormat().as_dict()))
        if unknown:
            raise StepRMError(f"pair_format has no key {unknown[0]!r}; it has {', '.join(PairFormat().as_dict())}")
        return PairFormat(**self.pair_format)

    def description(self) -> Description:
        """What the model reads and what its classes mean. Raises ``StepRMError``."""
        if self.model_path is not None:
            return read_description(self.model_path, self.format_given())
        negative, neutral, positive = self.labels or LABELS
        return Description(self.format_given() or PairFormat(layout="text"), 1.0, (negative, neutral, positive))

    def check_model(self) -> None:
        """Whether the model's folder can be read, if one is; apart from the settings, for plans where it is not there.

        Raises:
            SettingsError: it cannot.
        """
        try:
            if self.needs_model:
                self.description()
        except StepRMError as error:
            raise SettingsError(f"{SECTION}.model_path: {error}") from error

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "ScorerSettings":
        """Build from the resolved section. Raises ``SettingsError``."""
        return build(cls, values, SECTION)


def build_scorer(settings: ScorerSettings, router_address: str | None = None) -> StepScorer:
    """The scorer of the settings.

    Args:
        settings: the section.
        router_address: of verl's reward-model pool; used when the settings name no server.

    Raises:
        StepRMError: there is no server to ask, or the model cannot work.
    """
    if settings.kind == "local":
        from prime_ext.step_rm.scorers.local import LocalScorer

        return LocalScorer(
            settings.model_path or "",
            settings.format_given(),
            settings.device,
            settings.dtype,
            settings.batch_tokens,
            settings.cache_size,
            settings.trust_remote_code,
        )
    from prime_ext.step_rm.scorers.classify import ClassifyScorer, ServerOptions

    address = settings.address or router_address
    if address is None:
        raise StepRMError(
            f"{SECTION}.address is missing and verl's reward-model pool is off; give a URL, or set "
            "reward.reward_model.enable=true"
        )
    tokenizer = None
    if settings.needs_model:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(settings.model_path, trust_remote_code=settings.trust_remote_code)
    options = ServerOptions(
        settings.served_model or "",
        settings.batch_size,
        settings.concurrency,
        settings.timeout_seconds,
        settings.attempts,
        settings.backoff_seconds,
        settings.api_key_variable or "",
        settings.cache_size,
    )
    return ClassifyScorer(address, settings.description(), tokenizer, options)
