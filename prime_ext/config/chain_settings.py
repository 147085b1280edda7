# SPDX-License-Identifier: Apache-2.0
"""The settings of how the steps of a response become one reward: the configuration group ``chain``.

It stands under ``prime.process`` for the implicit PRM and under ``pspo`` for step reward models, which is why the
checks are given the name of the section. Nothing here imports torch; a test compares the names with the algorithms.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prime_ext.config.checks import SettingsError, build, choice, number

# Those of prime_ext.algorithms: step_scores, accumulation, chain_reward, shaping, process_shaping, step_credit.
STEP_SCORES = ("none", "sigmoid", "prefix_sigmoid")
ACCUMULATIONS = ("none", "sum", "mean", "geometric", "product", "min", "softmin", "last")
ACCUMULATIONS_OF_POSITIVE_SCORES = ("geometric", "product")
SINGLE_STEPS = ("zero", "keep")
PLACES = ("last_token", "step_ends", "tokens")
SHAPES = ("none", "weibull", "gaussian", "released")
SHAPES_OF_THE_SCORE = ("released",)
CREDITS = ("sum", "min_form", "strict_min", "clip", "delta", "clip_delta")
CREDITS_WITH_A_THRESHOLD = ("clip", "clip_delta")
CREDITS_WITH_SHARES = ("sum", "min_form")


@dataclass(frozen=True)
class AccumulationSettings:
    """How the scores of steps become one score (``accumulation``)."""

    mode: str
    """One of :data:`ACCUMULATIONS`."""
    temperature: float
    """Of ``softmin``."""
    first_weight: float
    """Factor on the first step's score."""
    power: float
    """Of the accumulated score."""
    single_step: str
    """What a response of one step is worth; one of :data:`SINGLE_STEPS`."""
    place: str
    """Where the reward is paid; one of :data:`PLACES`."""

    def check(self, prefix: str) -> None:
        choice(f"{prefix}.mode", self.mode, ACCUMULATIONS)
        number(f"{prefix}.temperature", self.temperature, 0.0, open_low=True)
        number(f"{prefix}.first_weight", self.first_weight, 0.0, open_low=True)
        number(f"{prefix}.power", self.power, 0.0, open_low=True)
        choice(f"{prefix}.single_step", self.single_step, SINGLE_STEPS)
        choice(f"{prefix}.place", self.place, PLACES)
        unread = {"first_weight": 1.0, "power": 1.0, "place": "last_token"}
        for key, default in unread.items():
            if self.mode == "none" and getattr(self, key) != default:
                raise SettingsError(
                    f"{prefix}.{key}={getattr(self, key)} is about an accumulated score, and {prefix}.mode=none "
                    f"accumulates nothing; leave it at {default}, or set the mode"
                )


@dataclass(frozen=True)
class WeibullSettings:
    """Parameters of the Weibull (``shaping.weibull``)."""

    shape: float
    scale: float
    constant: float | None
    """None: so that the peak is 1."""

    def check(self, prefix: str) -> None:
        number(f"{prefix}.shape", self.shape, 0.0, open_low=True)
        number(f"{prefix}.scale", self.scale, 0.0, open_low=True)
        if self.constant is not None:
            number(f"{prefix}.constant", self.constant, 0.0, open_low=True)
        elif self.shape <= 1.0:
            raise SettingsError(
                f"{prefix}.shape={self.shape}: such a Weibull has no peak that {prefix}.constant=null could make 1; "
                f"set the shape above 1, or the constant"
            )


@dataclass(frozen=True)
class GaussianSettings:
    """Parameters of the Gaussian (``shaping.gaussian``)."""

    mean: float
    std: float
    area: float | None
    """None: so that the peak is 1."""

    def check(self, prefix: str) -> None:
        number(f"{prefix}.mean", self.mean, 0.0)
        number(f"{prefix}.std", self.std, 0.0, open_low=True)
        if self.area is not None:
            number(f"{prefix}.area", self.area, 0.0, open_low=True)


@dataclass(frozen=True)
class ReleasedSettings:
    """Constants of the released function (``shaping.released``)."""

    growth: float
    peak: float
    slope: float
    steepness: float
    good: float
    poor: float
    bad: float

    def check(self, prefix: str) -> None:
        for key in ("growth", "peak", "slope", "steepness"):
            number(f"{prefix}.{key}", getattr(self, key), 0.0)
        number(f"{prefix}.good", self.good, 0.0, 1.0, open_low=True)
        number(f"{prefix}.poor", self.poor, 0.0, 1.0)
        number(f"{prefix}.bad", self.bad, 0.0, 1.0)


@dataclass(frozen=True)
class ShapingSettings:
    """What scores are multiplied by for the number of steps (``shaping``)."""

    name: str
    """One of :data:`SHAPES`."""
    weibull: WeibullSettings
    gaussian: GaussianSettings
    released: ReleasedSettings

    def check(self, prefix: str) -> None:
        choice(f"{prefix}.name", self.name, SHAPES)
        self.weibull.check(f"{prefix}.weibull")
        self.gaussian.check(f"{prefix}.gaussian")
        self.released.check(f"{prefix}.released")

    @property
    def parameters(self) -> dict[str, float | None]:
        """Those of the shape in use."""
        return {} if self.name == "none" else asdict(getattr(self, self.name))


def accumulation_settings(values: Mapping[str, Any], prefix: str) -> AccumulationSettings:
    """Build the section ``prefix`` from its resolved values and check it. Raises :class:`SettingsError`."""
    settings = build(AccumulationSettings, values, prefix)
    settings.check(prefix)
    return settings


def shaping_settings(values: Mapping[str, Any], prefix: str) -> ShapingSettings:
    """Build the section ``prefix`` from its resolved values and check it. Raises :class:`SettingsError`."""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{prefix}={values!r} must be a section with keys")
    classes = {"weibull": WeibullSettings, "gaussian": GaussianSettings, "released": ReleasedSettings}
    parts: dict[str, Any] = {
        name: build(cls, values.get(name, {}), f"{prefix}.{name}") for name, cls in classes.items()
    }
    settings = build(ShapingSettings, {**values, **parts}, prefix)
    settings.check(prefix)
    return settings


def check_chain(
    prefix: str, accumulation: AccumulationSettings, shaping: ShapingSettings, any_sign: str | None = None
) -> None:
    """Whether the two sections under ``prefix`` go together.

    Args:
        prefix: the section that holds ``accumulation`` and ``shaping``.
        any_sign: for scores that may be negative, what to say and set against it; None for scores in [0, 1].

    Raises:
        SettingsError: they do not.
    """
    mode, shape = accumulation.mode, shaping.name
    if shape in SHAPES_OF_THE_SCORE and mode == "none":
        raise SettingsError(
            f"{prefix}.shaping.name={shape} reads the accumulated score; set {prefix}.accumulation.mode, for example "
            f"to geometric (it is none)"
        )
    if accumulation.single_step != "zero" and mode == "none" and shape == "none":
        raise SettingsError(
            f"{prefix}.accumulation.single_step={accumulation.single_step} is read with an accumulation or a shape "
            f"only; leave it at zero"
        )
    if any_sign is None:
        return
    reasons = {
        f"{prefix}.accumulation.mode={mode} takes logarithms of scores": mode in ACCUMULATIONS_OF_POSITIVE_SCORES,
        f"{prefix}.accumulation.power={accumulation.power} takes powers of scores": accumulation.power != 1.0,
        f"{prefix}.shaping.name={shape} multiplies scores, so that negative ones would gain by a bad length": (
            shape != "none"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise SettingsError(f"{reason}; {any_sign}")


def check_credit(prefix: str, credit: str, temperature: float, threshold: float | None) -> None:
    """The three keys under ``prefix`` that say what a step's score pays. Raises :class:`SettingsError`."""
    choice(f"{prefix}.credit", credit, CREDITS)
    number(f"{prefix}.credit_temperature", temperature, 0.0, open_low=True)
    if credit in CREDITS_WITH_A_THRESHOLD:
        number(f"{prefix}.credit_threshold", threshold, -math.inf)
    elif threshold is not None:
        readers = " and ".join(CREDITS_WITH_A_THRESHOLD)
        raise SettingsError(
            f"{prefix}.credit_threshold={threshold} is read by {prefix}.credit={readers} only; leave it null"
        )


def check_credit_of_chain(prefix: str, credit: str, accumulation: AccumulationSettings) -> None:
    """Whether there is something for the credit to do where there is an accumulation. Raises :class:`SettingsError`."""
    shares = credit in CREDITS_WITH_SHARES and accumulation.place == "step_ends"
    if accumulation.mode != "none" and credit != "sum" and not shares:
        raise SettingsError(
            f"{prefix}.credit={credit} is about rewards of steps, and {prefix}.accumulation.mode={accumulation.mode} "
            f"makes one of the response; set it to sum (or to min_form with {prefix}.accumulation.place=step_ends)"
        )


def chain_arguments(accumulation: AccumulationSettings, shaping: ShapingSettings) -> dict[str, Any]:
    """What ``prime_ext.algorithms.chain_reward.ChainReward`` is made with."""
    values = asdict(accumulation)
    del values["place"]
    return {"accumulation": values.pop("mode"), **values, "shape": shaping.name, "parameters": shaping.parameters}
