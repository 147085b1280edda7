# SPDX-License-Identifier: Apache-2.0
"""The scorer that the section ``step_scorer`` describes."""

from anyio.from_thread import start_blocking_portal

from prime_ext.config.checks import SettingsError, read, unescape
from prime_ext.config.step_scorer_settings import (
    SECTION,
    JudgeSettings,
    LocalScorerSettings,
    ResponseFormat,
    ScorerSettings,
    ServerSettings,
    TokenClassifierSettings,
)
from prime_ext.step_rm.description import PairFormat, read_description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScorer
from prime_ext.step_rm.scorers.response_reader import ResponseReader


def read_format(settings: LocalScorerSettings | ServerSettings) -> PairFormat | None:
    """Return the pair format of the settings. Raises ``SettingsError``."""
    if settings.pair_format is None:
        return None
    values = dict(settings.pair_format)
    if isinstance(values.get("separator"), str):
        values["separator"] = unescape(values["separator"])
    return read(PairFormat, values, f"{SECTION}.pair_format")


def check_model(settings: ScorerSettings) -> None:
    """Check that the model's folder can be read. Raises ``SettingsError``."""
    if isinstance(settings, TokenClassifierSettings | JudgeSettings):
        return
    try:
        if isinstance(settings, ServerSettings) and settings.response_format:
            _build_reader(settings, settings.response_format)
        else:
            read_description(settings.model_path or "", read_format(settings))
    except StepRMError as error:
        raise SettingsError(f"{SECTION}.model_path: {error}") from error


def _build_reader(
    settings: TokenClassifierSettings | ServerSettings, form: ResponseFormat
) -> ResponseReader:
    reading = (form.layout, form.separator, form.answer_tokens)
    return ResponseReader(settings.model_path or "", *reading, settings.trust_remote_code)


def check_server(settings: ScorerSettings) -> None:
    """Check that the server at the address scores a step. Raises ``SettingsError``."""

    async def ask() -> list[Outcome]:
        scorer = build_scorer(settings)
        try:
            return await scorer.score([Chain(("1", "2"), "1")])
        finally:
            await scorer.close()

    try:
        with start_blocking_portal() as portal:
            (outcome,) = portal.call(ask)
    except StepRMError as error:
        raise SettingsError(f"{SECTION}.address: {error}") from error
    if isinstance(outcome, ScoringFailure):
        raise SettingsError(f"{SECTION}.address: {outcome.reason}")


def build_scorer(settings: ScorerSettings, router_address: str | None = None) -> StepScorer:
    """Build the scorer of the settings.

    ``router_address`` is that of verl's reward-model pool; it is used when the settings name no
    server. Raises ``StepRMError``: no server, or a model that cannot work.
    """
    if isinstance(settings, JudgeSettings):
        from prime_ext.step_rm.scorers.judge_scorer import JudgeScorer

        return JudgeScorer(settings.address or "", settings)
    path = settings.model_path or ""
    remote_code = settings.trust_remote_code
    if isinstance(settings, ServerSettings):
        from prime_ext.step_rm.scorers.server_scorer import ClassifyScorer, PoolingScorer

        address = settings.address or router_address
        if address is None:
            raise StepRMError(
                f"{SECTION}.address is missing and verl's reward-model pool is off; give a URL, or"
                " set reward.reward_model.enable=true"
            )
        if settings.response_format:
            reader = _build_reader(settings, settings.response_format)
            return PoolingScorer(address, reader, settings)
        return ClassifyScorer(address, read_description(path, read_format(settings)), settings)
    from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier

    if isinstance(settings, LocalScorerSettings):
        pair_format = read_format(settings)
        device = settings.device
        return LocalScorer(StepClassifier(path, pair_format, device, settings.dtype, remote_code))
    from prime_ext.step_rm.scorers.token_classifier import TokenClassifier

    reader = _build_reader(settings, settings)
    return LocalScorer(TokenClassifier(reader, settings.device, settings.dtype))
