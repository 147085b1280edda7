# SPDX-License-Identifier: Apache-2.0
"""Verifiers by the ``data_source`` of a row, as in verl.

The names of Eurus-2-RL-Data and of the usual benchmarks are known. :func:`register_source` adds a
name, :func:`register_task` a task, that is, a verifier.
"""

import fnmatch
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prime_ext.verifiers.multiple_choice import ChoiceTask
from prime_ext.verifiers.verdict import Verdict


class UnknownSource(ValueError):
    """No verifier is known for a ``data_source``."""


class TaskVerifier(Protocol):
    """Verifier of a task.

    Called as ``await averify(response, gold, **options)``; ``gold`` is
    ``reward_model.ground_truth``.
    """

    @property
    def averify(self) -> Callable[..., Awaitable[Verdict]]: ...


@dataclass(frozen=True)
class Source:
    """Task and options of rows whose ``data_source`` matches a shell ``pattern`` in any case."""

    pattern: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)


def _sources(task: str, patterns: str, **options: Any) -> list[Source]:
    return [Source(pattern, task, options) for pattern in patterns.split()]


# The first match decides.
_registered = [
    *_sources("math", "openai/gsm8k gsm8k", extraction="gsm8k"),
    *_sources("math", "numina_* math/*"),
    *_sources(
        "math",
        "math math-500 math500 lighteval/MATH* DigitalLearningGmbH/MATH* HuggingFaceH4/MATH-500",
    ),
    *_sources(
        "math",
        "math_dapo* aime* HuggingFaceH4/aime* AI-MO/aimo-validation-* amc* olympiadbench* minerva*",
    ),
    *_sources("math", "hmmt* prime_ext/last_digit_chain"),
    *_sources(
        "code", "apps codecontests taco codeforces humaneval* mbpp* leetcode* livecodebench*"
    ),
    *_sources("reasoning_gym", "reasoning_gym/*"),
    *_sources("choice", "awpnli newsnli redditnli rte_quant rte-quant rte stresstest qqa gpqa*"),
]
# Factories of verifiers, by task.
TASKS: dict[str, Callable[..., TaskVerifier]] = {}


def register_source(pattern: str, task: str, **options: Any) -> None:
    """Let a task judge matching rows; the last call wins. Raises ``UnknownSource``: no task."""
    if task not in TASKS:
        raise UnknownSource(
            f"no task {task!r} for data_source {pattern!r}; known tasks: {', '.join(sorted(TASKS))}"
        )
    _registered.insert(0, Source(pattern, task, options))


def register_task(name: str, make_verifier: Callable[..., TaskVerifier]) -> None:
    """Add a task; a judging process calls ``make_verifier(**settings)`` once, at its first row."""
    TASKS[name] = make_verifier


def find_source(data_source: str) -> Source:
    """Return the source of a ``data_source``. ``UnknownSource``: there is none."""
    for source in _registered:
        if fnmatch.fnmatchcase(data_source.lower(), source.pattern.lower()):
            return source
    known = ", ".join(source.pattern for source in _registered)
    raise UnknownSource(
        f"no verifier for data_source={data_source!r}; name a task for it in"
        f" reward.custom_reward_function.reward_kwargs.sources, e.g. {{{data_source}: math}}."
        f" Known: {known}"
    )


def choice_options(extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's settings of the multiple-choice verifier: option names, or their number."""
    names = extra_info.get("options")
    if names is None:
        return {"n_options": extra_info.get("n_options")}
    return {"names": tuple(map(str, names))}


def check_task_settings(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Check settings ``{task: {name: value}}``. Raises ``ValueError``: no such task or setting."""
    for task, values in settings.items():
        known = inspect.signature(_factory(task)).parameters
        for name in values:
            if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                raise ValueError(
                    f"task {task!r} has no setting {name!r}; it has {', '.join(known) or 'none'}"
                )


def make_task_verifier(task: str, settings: Mapping[str, Any] | None = None) -> TaskVerifier:
    """Make a verifier of a task. ``UnknownSource``: the task is not known."""
    return _factory(task)(**(settings or {}))


async def ask_verifier(
    verifier: TaskVerifier, response: str, gold: Any, options: Mapping[str, Any]
) -> Verdict:
    """Return a verifier's verdict on a response. ``TypeError``: it is not a :class:`Verdict`."""
    verdict: Any = await verifier.averify(response, gold, **options)
    if not isinstance(verdict, Verdict):
        raise TypeError(
            f"averify must return a Verdict, of correct() or wrong(), got {type(verdict).__name__}"
        )
    return verdict


def _factory(task: str) -> Callable[..., TaskVerifier]:
    if task not in TASKS:
        raise UnknownSource(f"no task {task!r}; known tasks: {', '.join(sorted(TASKS))}")
    return TASKS[task]


def _make_math(seconds: float | None = None) -> TaskVerifier:
    """Build the verifier; ``seconds``: time limit of the computer algebra for one answer."""
    from prime_ext.verifiers.math import MathVerifier

    return MathVerifier(time_limit=seconds)


def _make_code(
    seconds: float = 10.0,
    seconds_per_problem: float = 60.0,
    memory_mb: int = 1024,
    workers: int | None = None,
    unsafe_no_sandbox: bool = False,
) -> TaskVerifier:
    """Build the verifier; ``seconds`` and ``memory_mb`` limit a test; None: a worker per core."""
    from prime_ext.verifiers.code import CodeVerifier
    from prime_ext.verifiers.sandbox.client import Limits, Sandbox

    limits = Limits(seconds=seconds, memory_bytes=memory_mb << 20)
    sandbox = Sandbox(limits, workers, unsafe_no_sandbox=unsafe_no_sandbox)
    return CodeVerifier(sandbox, limits=limits, seconds_per_problem=seconds_per_problem)


def _make_reasoning_gym(seconds: float = 10.0) -> TaskVerifier:
    """Build the verifier; ``seconds``: time limit of the scorer for one answer."""
    from prime_ext.verifiers.gym_verifier import GymVerifier

    return GymVerifier(seconds)


register_task("math", _make_math)
register_task("code", _make_code)
register_task("choice", ChoiceTask)
register_task("reasoning_gym", _make_reasoning_gym)
BUILT_IN = frozenset(TASKS)
