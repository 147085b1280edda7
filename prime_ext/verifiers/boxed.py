# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Exact match of the last boxed answer: the outcome verifier of the quickstart."""

from typing import Any


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete ``\boxed{...}``, braces matched; None when there is none."""
    marker = "\\boxed{"
    start = text.rfind(marker)
    while start >= 0:
        depth, begin = 1, start + len(marker)
        for position in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[begin:position]
        start = text.rfind(marker, 0, start)
    return None


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, float]:
    r"""Reward function for verl (``reward.custom_reward_function``): 1 when the last boxed answer equals the truth.

    Returns:
        ``score`` and ``acc`` in {0, 1}, and ``answered``: whether there was a boxed answer at all.
    """
    answer = last_boxed(solution_str)
    correct = float(answer is not None and answer.strip() == str(ground_truth).strip())
    return {"score": correct, "acc": correct, "answered": float(answer is not None)}
