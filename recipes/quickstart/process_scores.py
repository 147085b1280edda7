# SPDX-License-Identifier: Apache-2.0
"""Process rewards of single responses, and how well they find the wrong steps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.prm_accuracy import pair_accuracy
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.evaluate import HeldOutProblem, Response, prompt_token_ids


class Piece(NamedTuple):
    """A token or a turn of a response.

    Attributes:
        text: as it was written.
        reward: its process reward; None for what a tool wrote.
        right: whether the step that it decides is right; None if it decides none.
        wrong: whether it belongs to a wrong step.
    """

    text: str
    reward: float | None
    right: bool | None = None
    wrong: bool = False


class ScoredResponse(NamedTuple):
    """A response and its pieces with process rewards."""

    problem: HeldOutProblem
    text: str
    right: bool
    pieces: list[Piece]

    @property
    def reward_sum(self) -> float:
        """Sum of the process rewards, by which the PRM orders responses."""
        return sum(piece.reward or 0.0 for piece in self.pieces)


@torch.inference_mode()
def score_tokens(
    prm: PreTrainedModel, reference: PreTrainedModel, prompt: list[int], response: list[int], beta: float
) -> list[float]:
    """Compute r_t = beta (log pi_prm - log pi_reference) of every token of a response, at temperature 1."""
    ids, chosen_T1 = torch.tensor([prompt + response]), torch.tensor(response)[:, None]
    # The logits at a position are those of the next token.
    logits = (model(ids).logits[0, len(prompt) - 1 : -1] for model in (prm, reference))
    prm_T, reference_T = (logits_TV.log_softmax(-1).gather(-1, chosen_T1)[:, 0] for logits_TV in logits)
    return process_rewards(log_ratio(prm_T, reference_T, torch.ones_like(prm_T)), beta).tolist()


def score_response(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problem: HeldOutProblem,
    response: Response,
    beta: float,
) -> ScoredResponse:
    """Score every token of a response; the digit of its result decides a step."""
    names = tokenizer.convert_ids_to_tokens(response.token_ids)
    # Special tokens have no text of their own in the response; <eos> is shown under its name.
    token_at = [index for index, name in enumerate(names) if name not in tokenizer.all_special_tokens for _ in name]
    checks = task.check_steps(problem.prompt, response.text)
    right = {token_at[check.result]: check.locally_right for check in checks if check.result is not None}
    wrong = {
        place
        for check in checks
        if not check.locally_right
        for place in token_at[check.start : check.start + len(check.text) + 1]
    }
    rewards = score_tokens(prm, reference, prompt_token_ids(tokenizer, problem.prompt), response.token_ids, beta)
    return ScoredResponse(
        problem,
        response.text,
        task.outcome_reward(response.text, problem.ground_truth) == 1.0,
        [Piece(name, rewards[place], right.get(place), place in wrong) for place, name in enumerate(names)],
    )


def area_under_curve(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """Probability that a right one scores above a wrong one (ties count half); None if one of the two is missing."""
    label_N = torch.tensor(right, dtype=torch.float64)
    return pair_accuracy(torch.tensor(scores, dtype=torch.float64), label_N, torch.zeros(len(right), dtype=torch.long))


def step_statistics(responses: Sequence[ScoredResponse]) -> dict[str, Any]:
    """Measure how well process rewards tell right from wrong steps (``auc``); the PRM never saw a label of a step.

    ``outcome_auc`` compares the sums over right and wrong responses.
    """
    pieces = [piece for response in responses for piece in response.pieces if piece.right is not None]
    rewards = {kind: [piece.reward for piece in pieces if piece.right == kind] for kind in (True, False)}
    means = {kind: float(np.mean(values)) if values else None for kind, values in rewards.items()}
    return {
        "responses": len(responses),
        "right_steps": len(rewards[True]),
        "wrong_steps": len(rewards[False]),
        "auc": area_under_curve([piece.reward for piece in pieces], [piece.right for piece in pieces]),
        "mean_reward_right_step": means[True],
        "mean_reward_wrong_step": means[False],
        "outcome_auc": area_under_curve([r.reward_sum for r in responses], [r.right for r in responses]),
    }
