# SPDX-License-Identifier: Apache-2.0
"""Process rewards of single responses, and how well they find the wrong steps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.prm_accuracy import pair_accuracy
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.evaluate import HeldOutProblem, Response, prompt_token_ids


class ScoredToken(NamedTuple):
    """A response token with its process reward and its log-probability under the PRM and the reference."""

    text: str
    reward: float
    log_prob_prm: float
    log_prob_reference: float


class ScoredStep(NamedTuple):
    """A visible step: what the rule says, and which tokens are its own (the ``;`` included)."""

    check: task.StepCheck
    first_token: int
    last_token: int
    result_token: int | None


class ScoredResponse(NamedTuple):
    """A response, its tokens with process rewards, and its steps."""

    problem: HeldOutProblem
    text: str
    right: bool
    tokens: list[ScoredToken]
    steps: list[ScoredStep]

    @property
    def reward_sum(self) -> float:
        """Sum of the process rewards, by which the PRM orders responses."""
        return sum(token.reward for token in self.tokens)


@torch.inference_mode()
def response_log_probs(model: PreTrainedModel, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Log-probabilities of the response tokens at temperature 1, (T,)."""
    # What is at a position is about the token behind it.
    logits_TV = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return logits_TV.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]


def token_rewards(prm_T: torch.Tensor, reference_T: torch.Tensor, beta: float) -> list[float]:
    """Compute r_t of every token from its log-probabilities under the PRM and under its reference, ``(T,)`` each."""
    return process_rewards(log_ratio(prm_T, reference_T, torch.ones_like(prm_T)), beta).tolist()


def locate_steps(prompt: str, response: Response, token_texts: Sequence[str]) -> list[ScoredStep]:
    """Find the tokens of every step. ``token_texts`` joined without special tokens is the response's text."""
    token_at = [index for index, text in enumerate(token_texts) for _ in text]
    return [
        ScoredStep(
            check,
            first_token=token_at[check.start],
            last_token=token_at[check.start + len(check.text)],
            result_token=None if check.result is None else token_at[check.result],
        )
        for check in task.check_steps(prompt, response.text)
    ]


def score_response(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problem: HeldOutProblem,
    response: Response,
    beta: float,
) -> ScoredResponse:
    """Score every response token with r_t = beta (log pi_prm - log pi_reference)."""
    prompt = prompt_token_ids(tokenizer, problem.prompt)
    prm_T, reference_T = (response_log_probs(model, prompt, response.token_ids) for model in (prm, reference))
    names = tokenizer.convert_ids_to_tokens(response.token_ids)
    values = (token_rewards(prm_T, reference_T, beta), prm_T.tolist(), reference_T.tolist())
    # Special tokens have no text of their own in the response; <eos> is shown under its name.
    texts = ["" if name in tokenizer.all_special_tokens else name for name in names]
    return ScoredResponse(
        problem,
        response.text,
        right=task.outcome_reward(response.text, problem.ground_truth) == 1.0,
        tokens=[ScoredToken(*columns) for columns in zip(names, *values, strict=True)],
        steps=locate_steps(problem.prompt, response, texts),
    )


def area_under_curve(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """Probability that a right one scores above a wrong one (ties count half); None if one of the two is missing."""
    label_N = torch.tensor(right, dtype=torch.float64)
    return pair_accuracy(torch.tensor(scores, dtype=torch.float64), label_N, torch.zeros(len(right), dtype=torch.long))


def step_statistics(responses: Sequence[ScoredResponse]) -> dict:
    """How well the process reward of the result digit tells locally right from locally wrong steps.

    The PRM never saw a label of a step. ``lowest_is_the_wrong_step``: among responses with exactly one wrong step, the
    share in which that step's result digit has the lowest reward of all result digits; ``chance`` is what guessing a
    step at random would give on the same responses.
    """
    rewards: dict[bool, list[float]] = {True: [], False: []}
    found, chances = [], []
    for response in responses:
        steps = [step for step in response.steps if step.result_token is not None]
        own = [response.tokens[step.result_token].reward for step in steps]
        right = [step.check.locally_right for step in steps]
        for reward, is_right in zip(own, right, strict=True):
            rewards[is_right].append(reward)
        if right.count(False) == 1 and len(steps) > 1:
            found.append(own.index(min(own)) == right.index(False))
            chances.append(1 / len(steps))
    labels = [True] * len(rewards[True]) + [False] * len(rewards[False])

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    return {
        "responses": len(responses),
        "right_steps": len(rewards[True]),
        "wrong_steps": len(rewards[False]),
        "auc": area_under_curve(rewards[True] + rewards[False], labels),
        "mean_reward_right_step": mean(rewards[True]),
        "mean_reward_wrong_step": mean(rewards[False]),
        "responses_with_one_wrong_step": len(found),
        "lowest_is_the_wrong_step": mean(found),
        "chance": mean(chances),
        "outcome_auc": area_under_curve([r.reward_sum for r in responses], [r.right for r in responses]),
    }
