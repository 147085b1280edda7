# SPDX-License-Identifier: Apache-2.0
"""The scorer that the section ``step_scorer`` asks for."""

from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal

from prime_ext.config.checks import SettingsError, read
from prime_ext.config.step_scorer_settings import SECTION, ScorerSettings
from prime_ext.step_rm.description import Description, PairFormat, read_description
from prime_ext.step_rm.labels import LABELS, StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScorer

if TYPE_CHECKING:
    from prime_ext.step_rm.scorers.token_classifier import TokenReader


def format_given(settings: ScorerSettings) -> PairFormat | None:
    """The pair format of the settings. Raises ``SettingsError``."""
    given = settings.pair_format
    return None if given is None else read(PairFormat, given, f"{SECTION}.pair_format")


def description_of(settings: ScorerSettings) -> Description:
    """What the model reads and what its classes mean. Raises ``StepRMError`` and ``SettingsError``."""
    if settings.needs_model:
        return read_description(settings.model_path or "", format_given(settings))
    negative, neutral, positive = settings.labels or LABELS
    return Description(format_given(settings) or PairFormat(layout="text"), 1.0, (negative, neutral, positive))


def check_model(settings: ScorerSettings) -> None:
    """Whether the pair format is one and the model's folder, if one is read, can be; the settings alone do not say so.

    Raises:
        SettingsError: it cannot.
    """
    try:
        format_given(settings)
        if settings.needs_model and settings.architecture == "sequence_classification":
            description_of(settings)
    except StepRMError as error:
        raise SettingsError(f"{SECTION}.model_path: {error}") from error


def check_server(settings: ScorerSettings) -> None:
    """Whether the server at the address scores a step. A judge is not asked, only whether it is served.

    Raises:
        SettingsError: it does not.
    """

    async def ask() -> list[Outcome]:
        scorer = build_scorer(settings)
        try:
            return await scorer.score([] if settings.architecture == "judge" else [Chain(("1", "2"), "1")])
        finally:
            await scorer.close()

    try:
        with start_blocking_portal() as portal:
            outcomes = portal.call(ask)
    except StepRMError as error:
        raise SettingsError(f"{SECTION}.address: {error}") from error
    for outcome in outcomes:
        if isinstance(outcome, ScoringFailure):
            raise SettingsError(f"{SECTION}.address: {outcome.reason}")


def build_scorer(settings: ScorerSettings, router_address: str | None = None) -> StepScorer:
    """The scorer of the settings.

    Args:
        settings: the section.
        router_address: of verl's reward-model pool; used when the settings name no server.

    Raises:
        StepRMError: there is no server to ask, or the model cannot work.
    """
    by_response = settings.architecture == "token_classification"
    if settings.kind == "local":
        device, dtype = settings.device, settings.dtype
        passes = settings.batch_tokens, settings.cache_size
        if by_response:
            from prime_ext.step_rm.scorers.token_classifier import TokenClassifier, TokenClassifierScorer

            return TokenClassifierScorer(TokenClassifier(_reader(settings), device, dtype), *passes)
        from prime_ext.step_rm.scorers.local import LocalScorer

        path = settings.model_path or ""
        return LocalScorer(path, format_given(settings), device, dtype, *passes, settings.trust_remote_code)
    address = settings.address or router_address
    if address is None:
        raise StepRMError(
            f"{SECTION}.address is missing and verl's reward-model pool is off; give a URL, or set "
            "reward.reward_model.enable=true"
        )
    from prime_ext.step_rm.scorers.server import ClassifyScorer, JudgeScorer, PoolingScorer

    if settings.architecture == "judge":
        return JudgeScorer(address, settings)
    if by_response:
        return PoolingScorer(address, _reader(settings), settings)
    return ClassifyScorer(address, description_of(settings), settings)


def _reader(settings: ScorerSettings) -> "TokenReader":
    """How a token classifier reads a response; it is told only what it reads."""
    from prime_ext.step_rm.scorers.token_classifier import TokenReader

    found: dict[str, Any] = {"layout": settings.layout, "answer_tokens": settings.answer_tokens}
    if settings.layout != "turns":
        found["separator"] = settings.separator
    if settings.answer_tokens is None:
        found["positive_label"] = settings.positive_label
    return TokenReader(settings.model_path or "", trust_remote_code=settings.trust_remote_code, **found)
