# SPDX-License-Identifier: Apache-2.0
"""Problems of reasoning-gym's tasks, named such as ``chain_sum:max_terms=3:max_digits=1``.

All tasks have two more parameters: ``threshold``, the least score that makes an answer right, and
``extraction``, the style in which responses state answers (default: ``boxed``).
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import yaml
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, SettingsError, Share, guess, read
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.gym_verifier import OF_VERIFIER, can_state, make_dataset, require

PREFIX = "reasoning_gym:"


def read_task(text: str) -> tuple[str, dict[str, Any]]:
    """Read name and parameters of ``TASK[:PARAMETER=VALUE]...``. ``SourceError``: a bad one."""
    name, *pairs = text.split(":")
    require(name)
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise SourceError(f"reasoning-gym has no task {name!r}{guess(name, DATASETS)}")

    @dataclass(config=STRICT)
    class Parameters(DATASETS[name][1]):  # type: ignore[misc]
        threshold: Share = 1.0
        extraction: Literal["boxed", "gsm8k", "lenient"] = "boxed"

    try:
        values = {
            key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in pairs)
        }
        checked = asdict(read(Parameters, values, name))
    except (SettingsError, yaml.YAMLError) as error:
        raise SourceError(" ".join(str(error).split())) from error
    return name, {key: checked[key] for key in (*OF_VERIFIER, *values)}


def generate(text: str, count: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield different problems, ``question`` and ``gold``.

    A response can state their answers; some tasks give none and are scored without it.
    ``SourceError``: a name is unknown; the task has too few problems, needs a network, or refuses
    its parameters.
    """
    task, parameters = read_task(text)
    known: set[str] = set()
    try:
        dataset = make_dataset(task, repr(parameters), seed, 5 * count)
        for index in range(5 * count):
            entry = dataset[index]
            question = entry["question"]
            answer = entry["answer"]
            if question not in known and (answer is None or can_state(answer, dataset)):
                known.add(question)
                problem = {
                    "task": task,
                    "parameters": parameters,
                    "answer": answer,
                    "metadata": entry["metadata"],
                }
                with np.printoptions(legacy="1.25"):  # no types of numpy in the text
                    gold = repr(problem)
                yield {"question": question, "gold": gold}
                if len(known) == count:
                    return
    except Exception as error:
        raise SourceError(
            f"{text} makes no problems: {type(error).__name__} {' '.join(str(error).split())}"
        ) from error
    raise SourceError(
        f"{text} made only {len(known)} different problems in {5 * count} attempts; ask for fewer"
    )
