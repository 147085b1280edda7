# SPDX-License-Identifier: Apache-2.0
"""A user's reward function, called so that it can neither hang nor end a run.

The configuration names it in ``reward.custom_reward_function``. A function without ``async`` runs
in killable processes (:mod:`prime_ext.verifiers.worker_pool`), which load it themselves; a
coroutine function runs in the event loop of a thread, where it may wait for many requests at a
time.
"""

import asyncio
import functools
import importlib
import importlib.util
import inspect
import math
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from prime_ext.utils.loop_thread import LoopThread
from prime_ext.verifiers.verdict import Outcome, grader_failed
from prime_ext.verifiers.worker_pool import Failure, WorkerPool, count_cores

PRIME_EXT_FUNCTION = "pkg://prime_ext.reward.compute_score"
# The default of reward.timeout in verl's rate-limited manager.
SECONDS = 300.0
# Address space; a function may load what it likes.
_MEMORY = 1 << 60


def start_pool(seconds: float, workers: int) -> WorkerPool:
    """Return the processes for :func:`call`; they stop a call after ``seconds``."""
    return WorkerPool(
        workers, time_limit=seconds, memory_limit=_MEMORY, warm_up=f"{__name__}:warm_up"
    )


def warm_up() -> None:
    """Import this module, which must stay light, before the first call's time begins."""


@functools.cache
def load_file(path: str) -> ModuleType:
    """Load a Python file as a module. Raises the exceptions of the module.

    Data classes with postponed annotations look their module up in ``sys.modules``, and processes
    that a function starts import it by its name.
    """
    file = Path(path.removeprefix("file://")).absolute()
    taken = file.stem in sys.modules or importlib.util.find_spec(file.stem) is not None
    name = f"reward_function_{file.stem}" if taken else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def load(path: str, name: str) -> Callable[..., Any]:
    """Load a function from ``pkg://module`` or a file like verl, but without verl.

    Raises the exceptions of the module.
    """
    if path.startswith("pkg://"):
        module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    else:
        module = load_file(path)
    return getattr(module, name)


def call(path: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function in this process and return its result in the form of :func:`read_result`."""
    result = load(path, name)(**arguments)
    return read_result(asyncio.run(result) if inspect.iscoroutine(result) else result)


def read_result(result: Any) -> dict[str, Any]:
    """Return a result's extra info, with a finite number as ``score``, or raise ValueError."""
    info = dict(result) if isinstance(result, Mapping) else {"score": result, "acc": result}
    wrong = [name for name in info if not isinstance(name, str)]
    if wrong:
        raise ValueError(f"it returned a dict with the key {wrong[0]!r}; keys must be texts")
    try:
        score = math.nan if isinstance(info.get("score"), str) else float(info["score"])
    except (KeyError, TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        shown = repr(result)[:80]
        raise ValueError(
            f"it returned {shown}, and must return a finite number, or a dict with one as score"
        )
    return {**info, "score": score}


def guard(function: Callable[..., Any], config: Any) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return a coroutine function that calls ``function`` and turns its failures into the grader's.

    A call fails if it raises, takes too long or returns no number.
    """
    from omegaconf import OmegaConf

    from prime_ext.reward.compute_score import reward_info

    custom = config.reward.custom_reward_function
    seconds = float(config.reward.get("timeout") or SECONDS)
    kwargs: Any = OmegaConf.to_container(
        custom.get("reward_kwargs") or OmegaConf.create(), resolve=True
    )
    if inspect.iscoroutinefunction(function):
        thread = LoopThread()

        async def run(arguments: dict[str, Any]) -> Any:
            return read_result(await thread.run(function(**arguments), seconds))

    else:
        pool = start_pool(seconds, max(4, count_cores() // config.reward.num_workers))

        async def run(arguments: dict[str, Any]) -> Any:
            return await asyncio.wrap_future(
                pool.submit(call, custom.path, custom.name, {**arguments, **kwargs})
            )

    async def score(**arguments: Any) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            result: Any = await run(arguments)
        except asyncio.TimeoutError:
            result = Failure(Outcome.TIMEOUT, f"more than {seconds:g} s (reward.timeout)")
        except Exception as error:
            result = Failure(Outcome.ERROR, f"{type(error).__name__}: {error}")
        taken = time.perf_counter() - start
        if isinstance(result, Failure):
            detail = (result.detail.strip().splitlines() or [""])[-1]
            return reward_info(
                grader_failed(result.outcome, None, taken, f"{custom.name}: {detail}")
            )
        outcome = Outcome.CORRECT if result["score"] == 1 else Outcome.WRONG
        return {"verdict": str(outcome), "grader_failure": 0.0, "verifier_seconds": taken, **result}

    return score
