# SPDX-License-Identifier: Apache-2.0
"""The reward function: judges a response with the verifier of its data source.

reward.custom_reward_function.path=pkg://prime_ext.reward.compute_score
reward.custom_reward_function.name=compute_score
+reward.custom_reward_function.reward_kwargs.sources.my_set=math

Grader processes and the sandbox live in one Ray actor a node (:mod:`prime_ext.reward.node_actor`):
one for each of verl's reward workers would oversubscribe the cores. Without Ray they live in the
calling process.
"""

import functools
import importlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from prime_ext.config.modules import user_modules
from prime_ext.reward.node_actor import NodeActor, NodeFailure
from prime_ext.verifiers.sources import (
    TaskVerifier,
    ask_verifier,
    check_task_settings,
    choice_options,
    find_source,
    make_task_verifier,
    register_source,
)
from prime_ext.verifiers.verdict import Outcome, Verdict, grader_failed

logger = logging.getLogger(__name__)

# By task, for the factories in prime_ext.verifiers.sources.
Settings = Mapping[str, Mapping[str, Any]]

# Requests that the actor of a node works on at the same time; more wait in its queue.
MAX_CONCURRENCY = 1000
CODE_REWARDS = ("all", "fraction")
MATH_STRICTNESS = ("no_restatement", "lenient")
_MAX_LOGGED = 200  # characters


class NodeVerifiers:
    """Verifiers in a node's Ray actor or in this process, each made at its task's first request."""

    def __init__(self, settings: Settings):
        for module in user_modules():
            importlib.import_module(module)
        self._settings = settings
        self._verifiers: dict[str, TaskVerifier] = {}

    async def verify(
        self, task: str, response: str, gold: Any, options: Mapping[str, Any]
    ) -> Verdict:
        """Judge one response. An exception of the verifier is a failure of the grader."""
        start = time.perf_counter()
        try:
            if task not in self._verifiers:
                self._verifiers[task] = make_task_verifier(task, self._settings.get(task))
            return await ask_verifier(self._verifiers[task], response, gold, options)
        except Exception as error:
            logger.exception("the verifier of task %s broke", task)
            detail = f"{type(error).__name__}: {error}"[:500]
            return grader_failed(Outcome.ERROR, None, time.perf_counter() - start, detail)


def _prompt(extra_info: Mapping[str, Any]) -> str:
    """Return the text of the user's messages in ``extra_info.raw_prompt``.

    Raises ValueError: there are none.
    """
    if extra_info.get("raw_prompt") is None:
        raise ValueError(
            "math_strictness=no_restatement compares answers with extra_info.raw_prompt, which is"
            " not there; set reward.reward_manager.name=naive_with_prompt, or"
            " math_strictness=lenient"
        )
    contents = [
        message["content"] for message in extra_info["raw_prompt"] if message["role"] == "user"
    ]
    parts = [[{"text": content}] if isinstance(content, str) else content for content in contents]
    return "\n".join(str(piece.get("text", "")) for content in parts for piece in content)


def _task_options(
    task: str, extra_info: Mapping[str, Any], code_reward: str, math_strictness: str
) -> dict[str, Any]:
    if task == "math" and math_strictness == "no_restatement":
        return {"prompt": _prompt(extra_info)}
    if task == "code":
        return {"reward": code_reward}
    if task == "choice":
        return choice_options(extra_info)
    return {}


def reward_info(verdict: Verdict) -> dict[str, Any]:
    """Return the columns that verl stores of a verdict.

    A response that could not be judged has score 0 and ``grader_failure`` 1 (see
    ``prime.verifier.on_failure``).
    """
    score = 0.0 if verdict.score is None else verdict.score
    return {
        "score": score,
        "acc": score,
        "pred": (verdict.extracted or "")[:_MAX_LOGGED],
        "verdict": str(verdict.outcome),
        "grader_failure": float(verdict.grader_failure),
        "answer_found": float(verdict.extracted is not None),
        "verifier_seconds": verdict.seconds,
        "verifier_detail": verdict.detail[:_MAX_LOGGED],
    }


@functools.cache
def _verifiers(key: str) -> NodeActor:
    sources, settings = json.loads(key)
    check_task_settings(settings)
    for pattern, task in sources.items():
        register_source(pattern, task)
    return NodeActor("verifiers", NodeVerifiers, settings, max_concurrency=MAX_CONCURRENCY)


def prepare(
    sources: Mapping[str, str] | None = None,
    code_reward: str = "all",
    math_strictness: str = "no_restatement",
    verifiers: Settings | None = None,
) -> NodeActor:
    """Register the sources of :func:`compute_score`, and return the verifiers of this node.

    Raises ValueError: an unknown task or setting, or ``code_reward`` or ``math_strictness`` is
    neither of the two.
    """
    if math_strictness not in MATH_STRICTNESS:
        raise ValueError(
            f"math_strictness={math_strictness!r} is not one of {', '.join(MATH_STRICTNESS)}"
        )
    if code_reward not in CODE_REWARDS:
        raise ValueError(f"code_reward={code_reward!r} is not one of {', '.join(CODE_REWARDS)}")
    # They come as OmegaConf's mappings.
    settings = {task: dict(values) for task, values in (verifiers or {}).items()}
    return _verifiers(json.dumps([dict(sources or {}), settings]))


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    sources: Mapping[str, str] | None = None,
    code_reward: str = "all",
    math_strictness: str = "no_restatement",
    verifiers: Settings | None = None,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
) -> dict[str, Any]:
    """Judge one response, and return the columns of :func:`reward_info`.

    The signature is that of verl's reward loop.

    Args:
        data_source: selects the verifier (:mod:`prime_ext.verifiers.sources`).
        solution_str: the response.
        ground_truth: the gold answer, or the tests of a program.
        extra_info: of the row. Multiple choice reads ``options`` (their names) or ``n_options``,
            mathematics ``raw_prompt``, which this package's reward managers add.
        sources: tasks of further data sources, ``{pattern: task}``.
        code_reward: ``all``: 1 if every test passes, else 0; ``fraction``: the fraction of tests
            that pass (PRIME).
        math_strictness: ``no_restatement``: an unevaluated expression is as right as its value,
            unless the prompt has it (:mod:`prime_ext.verifiers.math.restatement`); ``lenient``:
            also then, as in evaluation.
        verifiers: settings of the verifiers by task, e.g. ``{code: {seconds: 5, memory_mb: 512}}``.
        reward_router_address, reward_model_tokenizer: of verl's reward model; not used.

    Raises:
        UnknownSource: no verifier is known for the data source.
        ValueError: the prompt is needed and missing; or see :func:`prepare`.
    """
    node = prepare(sources, code_reward, math_strictness, verifiers)
    source = find_source(data_source)
    options = {
        **source.options,
        **_task_options(source.task, extra_info or {}, code_reward, math_strictness),
    }
    start = time.perf_counter()
    try:
        verdict = await node.ask("verify", source.task, solution_str, ground_truth, options)
    except NodeFailure as error:
        verdict = grader_failed(Outcome.ERROR, None, time.perf_counter() - start, str(error))
    return reward_info(verdict)
