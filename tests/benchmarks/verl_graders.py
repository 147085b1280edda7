# SPDX-License-Identifier: Apache-2.0
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
