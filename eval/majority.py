# SPDX-License-Identifier: Apache-2.0
"""maj@k: the answer that most of k responses give. Exact over all draws of k from n responses. Pure functions.

- Responses vote for the class of their answer: the answers that the verifier takes to be equal.
- A response without an answer does not vote. Where nobody votes, the score is 0.
- A tie is broken by lot: the score is the mean over the classes that share the first place.
- The score of a class is the mean score of its responses. They nearly always agree; where the verifier's equality is
  not transitive, this is the expected score of handing in one of them.
- A response that the grader could not judge is left out, vote and score.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from eval.statistics import Estimate, over_problems
from prime_ext.tasks.votes import Ballot, Same


def majority_score(ballot: Ballot, k: int) -> float:
    """Expected score of the majority of ``k`` responses, drawn without replacement.

    For each class and each number m of its votes, the draws in which no other class has more than m are counted by the
    number of classes that tie with it.

    Raises:
        ValueError: there are fewer than ``k`` responses.
    """
    if not 1 <= k <= ballot.responses:
        raise ValueError(f"k={k} must be from 1 to the {ballot.responses} responses")
    total = 0.0
    subsets = math.comb(ballot.responses, k)
    for index, (own, score) in enumerate(zip(ballot.votes, ballot.scores, strict=True)):
        if score == 0:
            continue
        others = tuple(sorted(ballot.votes[:index] + ballot.votes[index + 1 :]))
        for m in range(1, min(own, k) + 1):
            ways = _ways(others, ballot.silent, k - m, m)
            # Exact whole numbers up to here: they exceed every float where k is large.
            total += score * sum(math.comb(own, m) * number / subsets / (ties + 1) for ties, number in enumerate(ways))
    return min(total, 1.0)


@lru_cache(maxsize=4096)
def _ways(others: tuple[int, ...], silent: int, drawn: int, most: int) -> tuple[int, ...]:
    """Ways to draw ``drawn`` responses, at most ``most`` per class, by the number of classes that reach ``most``."""
    table = {(0, 0): 1}
    for votes in others:
        following: dict[tuple[int, int], int] = {}
        for (used, ties), number in table.items():
            for taken in range(min(votes, most, drawn - used) + 1):
                place = (used + taken, ties + (taken == most))
                following[place] = following.get(place, 0) + number * math.comb(votes, taken)
        table = following
    ways = [0] * (len(others) + 1)
    for (used, ties), number in table.items():
        ways[ties] += number * math.comb(silent, drawn - used)
    return tuple(ways)


def majority_at_k(ballots: Sequence[Ballot], k: int) -> Estimate:
    """maj@k over problems.

    Args:
        ballots: of the judged responses of each problem. A problem with fewer than ``k`` of them is left out.
        k: responses that vote.

    Raises:
        NoProblems: no problem has ``k`` judged responses.
    """
    counted = [ballot for ballot in ballots if ballot.responses >= k]
    values = [majority_score(ballot, k) for ballot in counted]
    trials = sum(ballot.responses // k for ballot in counted)
    return over_problems(values, trials, left_out=len(ballots) - len(counted))


def same_text(first: str, second: str) -> bool:
    """Equality of options and other answers that have one spelling."""
    return first == second


def same_mathematics() -> Same:
    """Equality of mathematics: each answer is right where the other is the gold answer.

    Both ways, because the verifier lets an exact answer round to a gold decimal. What it cannot decide is different.
    """
    from prime_ext.verifiers.math import MathVerifier

    verifier = MathVerifier()

    def same(first: str, second: str) -> bool:
        if first.strip() == second.strip():
            return True
        if not first.strip() or not second.strip():
            return False
        return verifier.verify_answer(second, first).correct and verifier.verify_answer(first, second).correct

    return same
