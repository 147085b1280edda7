# SPDX-License-Identifier: Apache-2.0
"""Decorators that add to prime_ext from a module of yours, which the key ``modules`` names.

docs/how_to/own_data.md explains them. verl imports the module in every process of a run, and
``prime_ext.train`` before it checks the settings.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from pydantic import ValidationError

from prime_ext import names
from prime_ext.algorithms.estimators import ESTIMATORS, Estimator, RewardSource
from prime_ext.algorithms.prm_losses import PRM_LOSSES, PRMLossFunction, RowFields, ce_rows
from prime_ext.algorithms.shaping import SHAPES, ShapeOfLength
from prime_ext.methods.rollouts import RewardFunction, Rewards, Rollouts, ScoredRollouts
from prime_ext.methods.source_settings import OWN_SOURCES, OwnSource, SourceSettings
from prime_ext.verifiers.sources import TASKS, TaskVerifier, register_source

_PRMLoss = Callable[..., Any]


def estimator(name: str) -> Callable[[Estimator], Estimator]:
    """Add ``f(source, response_mask_BT, group_B) -> advantage_BT`` as an estimator.

    It is for outcomes, process rewards and turns. :mod:`prime_ext.algorithms.estimators` explains
    the arguments and the result.
    """

    def add(function: Estimator) -> Estimator:
        mask_BT = torch.ones(2, 3)
        group_B = torch.zeros(2, dtype=torch.int64)
        source = RewardSource(mask_BT / 2, mask_BT, value_BT=0 * mask_BT, turn_end_BT=mask_BT == 1)
        _check(f"the estimator {name!r}", function(source, mask_BT, group_B), (2, 3))
        traits = names.EstimatorTraits(names.ALL_SOURCES)
        _add(name, (ESTIMATORS, _name_estimator(name, function)), (names.ESTIMATORS, traits))
        return function

    return add


def source(name: str, settings: type[SourceSettings]) -> Callable[[RewardFunction], RewardFunction]:
    """Add ``f(rollouts, scored, settings) -> Rewards`` as a source, ``prime.sources.NAME``.

    ``settings`` is the class of its keys, each with a default; its ``needs`` say what ``rollouts``
    and ``scored`` have (:mod:`prime_ext.methods.rollouts`).
    """

    def add(function: RewardFunction) -> RewardFunction:
        if not (isinstance(settings, type) and issubclass(settings, SourceSettings)):
            raise ValueError(f"the settings of the source {name!r} must derive from SourceSettings")
        if name in ("outcome", "process", "turns"):
            raise ValueError(f"{name!r} is the name of a source of prime_ext; choose another")
        try:
            settings()
        except ValidationError as error:
            missing = error.errors()[0]["loc"][0]
            raise ValueError(f"{missing!r} of the source {name!r} needs a default") from error
        _add(name, (OWN_SOURCES, OwnSource(settings, _name_source(name, function))))
        return function

    return add


def _name_source(name: str, function: RewardFunction) -> RewardFunction:
    """Wrap a user's source so that errors, wrong shapes and NaN name it."""
    what = f"the source {name!r}"

    @functools.wraps(function)
    def compute(rollouts: Rollouts, scored: ScoredRollouts, settings: Any) -> Rewards | None:
        try:
            rewards = function(rollouts, scored, settings)
        except Exception as error:
            raise UserFunctionFailed(_describe(what, error)) from error
        if rewards is None:
            return None
        if not isinstance(rewards, Rewards):
            raise UserFunctionFailed(
                f"{what} must return Rewards or None, got {type(rewards).__name__}"
            )
        expected = tuple(rollouts.mask_BT.shape)
        for field in ("reward_BT", "mask_BT"):
            value = getattr(rewards, field)
            if not isinstance(value, torch.Tensor) or tuple(value.shape) != expected:
                got = (
                    tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                )
                raise UserFunctionFailed(f"{field} of {what} must have shape {expected}, got {got}")
        if not rewards.reward_BT[rollouts.mask_BT.bool()].isfinite().all():
            raise UserFunctionFailed(f"{what} returns NaN or infinity")
        metrics = {f"source/{name}/{key}": value for key, value in rewards.metrics.items()}
        return replace(rewards, metrics=metrics)

    return compute


def _describe(what: str, error: Exception) -> str:
    message = " ".join(str(error).split())[:200]
    return f"{what} failed: {type(error).__name__}: {message}"


def prm_loss(
    name: str,
    rows: Callable[..., RowFields] = ce_rows,
    needs_scores: bool = False,
    allows_soft_labels: bool = False,
) -> Callable[[_PRMLoss], _PRMLoss]:
    """Add ``f(log_ratio_BT, mask_BT, rows, beta) -> scalar`` as ``prm.loss``.

    ``rows`` gives its targets and weights. :class:`prime_ext.algorithms.prm_losses.PRMLossFunction`
    explains the arguments.
    """

    def add(function: _PRMLoss) -> _PRMLoss:
        _try_loss(name, function)
        named = _name_errors(f"the PRM loss {name!r}", function, lambda *_: ())
        entry = PRMLossFunction(name, rows, named)
        traits = names.LossTraits(needs_scores, allows_soft_labels)
        _add(name, (PRM_LOSSES, entry), (names.PRM_LOSSES, traits))
        return function

    return add


def _try_loss(name: str, function: _PRMLoss) -> None:
    """Call a PRM loss on two rows. Raises ValueError: no finite scalar with a gradient."""
    rows = RowFields(torch.ones(2), torch.tensor([0.0, 1.0]), torch.zeros(2))
    value = function(torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3), rows, 0.05)
    _check(f"the PRM loss {name!r}", value, ())
    if not value.requires_grad:
        raise ValueError(f"the PRM loss {name!r} must return a tensor with a gradient")


class UserFunctionFailed(RuntimeError):
    """A user's function failed during a run; the message is one line with its name."""


def _name_errors(
    what: str, function: Callable[..., Any], shape: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrap a user's function so that its errors and wrong results name it.

    ``shape`` computes the shape of the result from the arguments.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            value = function(*arguments, **options)
        except Exception as error:
            raise UserFunctionFailed(_describe(what, error)) from error
        expected = tuple(shape(*arguments))
        if not isinstance(value, torch.Tensor) or tuple(value.shape) != expected:
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise UserFunctionFailed(f"{what} must return a tensor of shape {expected}, got {got}")
        return value

    return call


def _name_estimator(name: str, function: Estimator) -> Estimator:
    """Wrap a user's estimator so that errors, wrong shapes and NaN name it, and not the PRM."""
    what = f"the estimator {name!r}"
    named = _name_errors(what, function, lambda source, mask_BT, group_B: mask_BT.shape)

    @functools.wraps(function)
    def estimate(
        source: RewardSource, mask_BT: torch.Tensor, group_B: torch.Tensor
    ) -> torch.Tensor:
        advantage_BT = named(source, mask_BT, group_B)
        valid_BT = mask_BT.bool()
        if source.reward_BT.isfinite().all() and not advantage_BT[valid_BT].isfinite().all():
            raise UserFunctionFailed(f"{what} returns NaN or infinity for finite rewards")
        return advantage_BT

    return estimate


def _check(function: str, value: Any, shape: tuple[int, ...]) -> None:
    """Check the result of a trial call. Raises ValueError: not a finite tensor of the shape."""
    if not isinstance(value, torch.Tensor) or value.shape != shape:
        is_tensor = isinstance(value, torch.Tensor)
        got = f"shape {tuple(value.shape)}" if is_tensor else type(value).__name__
        raise ValueError(
            f"{function} must return a tensor of shape {shape} for this trial, got {got}"
        )
    if not value.isfinite().all():
        raise ValueError(f"{function} returns NaN or infinity for ordinary values")


def shaping(name: str) -> Callable[[ShapeOfLength], ShapeOfLength]:
    """Add ``f(steps) -> factor``, of numbers of steps, as ``shaping.name`` of a chain of steps."""

    def add(function: ShapeOfLength) -> ShapeOfLength:
        _check(f"the shape {name!r}", function(torch.tensor([1.0, 2.0, 5.0])), (3,))
        named = _name_errors(f"the shape {name!r}", function, lambda steps: steps.shape)
        shape = lambda score, steps: named(steps)  # noqa: E731
        _add(name, (SHAPES, shape), (names.SHAPES, False))
        return function

    return add


def verifier(name: str, *data_sources: str) -> Callable[[type[TaskVerifier]], type[TaskVerifier]]:
    """Add a class of verifiers for rows whose ``data_source`` matches one of these patterns.

    ``await averify(response, gold)`` returns a :class:`prime_ext.verifiers.Verdict`; the arguments
    of the class are ``reward_kwargs.verifiers.<name>``.
    """

    def add(kind: type[TaskVerifier]) -> type[TaskVerifier]:
        if not inspect.iscoroutinefunction(getattr(kind, "averify", None)):
            raise ValueError(
                f"the verifier {name!r} has no `async def averify(self, response, gold)`"
            )
        _add(name, (TASKS, kind))
        for pattern in data_sources:
            register_source(pattern, name)
        return kind

    return add


def _add(name: str, *entries: tuple[dict[str, Any], Any]) -> None:
    """Add an entry of this name to each registry. Raises ValueError: the name is taken."""
    for registry, _ in entries:
        if name in registry:
            raise ValueError(f"{name!r} is taken; there are {', '.join(sorted(registry))}")
    for registry, entry in entries:
        registry[name] = entry
