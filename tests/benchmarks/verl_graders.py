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
"""verl's own math graders in the signature of the benchmarks: ``(gold, pred) -> bool``."""

from verl.utils.reward_score import math_dapo, math_reward, prime_math


def verl_prime_math(gold: str, pred: str) -> bool:
    return bool(prime_math.compute_score(rf"\boxed{{{pred}}}", gold)[0])


def verl_math_reward(gold: str, pred: str) -> bool:
    return math_reward.compute_score(rf"\boxed{{{pred}}}", gold) > 0


def verl_math_dapo(gold: str, pred: str) -> bool:
    return bool(math_dapo.compute_score(f"Answer: {pred}", gold)["acc"])


GRADERS = {
    "verl prime_math": verl_prime_math,
    "verl math_reward": verl_math_reward,
    "verl math_dapo": verl_math_dapo,
}
