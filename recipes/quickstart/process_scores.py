# SPDX-License-Identifier: Apache-2.0
"""Process rewards of single responses, and how well they find the wrong steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.prm_accuracy import pair_accuracy
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.evaluate import HeldOutProblem, Response, prompt_token_ids

BATCH_SIZE = 100


@dataclass(frozen=True)
class ScoredToken:
    """A response token with its process reward and its log-probability under the PRM and the reference."""

    text: str
    reward: float
    log_prob_prm: float
    log_prob_reference: float


@dataclass(frozen=True)
class ScoredStep:
    """A visible step: what the rule says, and which tokens are its own (the ``;`` included)."""

    check: task.StepCheck
    first_token: int
    last_token: int
    result_token: int | None


@dataclass(frozen=True)
class ScoredResponse:
    """A response, its tokens with process rewards, and its steps."""

    problem: HeldOutProblem
    text: str
    right: bool
    tokens: list[ScoredToken]
    steps: list[ScoredStep]

    @property
    def reward_sum(self) -> float:
        """Sum of the process rewards = the logit of the PRM's belief that the answer is right."""
        return sum(token.reward for token in self.tokens)


@torch.inference_mode()
def response_log_probs(
    model: PreTrainedModel, prompts: Sequence[list[int]], responses: Sequence[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the response tokens at temperature 1, (B, T), and their mask."""
    rows = [torch.tensor([*prompt, *response]) for prompt, response in zip(prompts, responses, strict=True)]
    ids_BL = pad_sequence(rows, batch_first=True)
    attention_BL = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    log_prob_BLV = model(input_ids=ids_BL, attention_mask=attention_BL).logits[:, :-1].log_softmax(-1)
    log_prob_BL = log_prob_BLV.gather(-1, ids_BL[:, 1:, None])[..., 0]
    # What is at a position is about the token behind it.
    own = [
        row[len(prompt) - 1 :][: len(response)]
        for row, prompt, response in zip(log_prob_BL, prompts, responses, strict=True)
    ]
    return pad_sequence(own, batch_first=True), pad_sequence([torch.ones_like(row) for row in own], batch_first=True)


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


def score_responses(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[HeldOutProblem],
    responses: Sequence[Response],
    *,
    beta: float,
) -> list[ScoredResponse]:
    """Score every response token with r_t = beta (log pi_prm - log pi_reference)."""
    scored: list[ScoredResponse] = []
    special = set(tokenizer.all_special_tokens)
    for first in range(0, len(problems), BATCH_SIZE):
        some = list(zip(problems[first : first + BATCH_SIZE], responses[first : first + BATCH_SIZE], strict=True))
        ids = ([prompt_token_ids(tokenizer, p.prompt) for p, _ in some], [response.token_ids for _, response in some])
        prm_BT, mask_BT = response_log_probs(prm, *ids)
        reference_BT, _ = response_log_probs(reference, *ids)
        reward_BT = process_rewards(log_ratio(prm_BT, reference_BT, mask_BT), beta)
        for (problem, response), *columns in zip(
            some, reward_BT.tolist(), prm_BT.tolist(), reference_BT.tolist(), strict=True
        ):
            names = tokenizer.convert_ids_to_tokens(response.token_ids)
            # Special tokens have no text of their own in the response; <eos> is shown under its name.
            texts = ["" if name in special else name for name in names]
            right = task.outcome_reward(response.text, problem.ground_truth) == 1.0
            tokens = [ScoredToken(*values) for values in zip(names, *columns, strict=False)]
            steps = locate_steps(problem.prompt, response, texts)
            scored.append(ScoredResponse(problem, response.text, right, tokens, steps))
    return scored


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
    rewards, labels, found, chances = [], [], [], []
    for response in responses:
        steps = [step for step in response.steps if step.result_token is not None]
        own = [response.tokens[step.result_token].reward for step in steps]
        right = [step.check.locally_right for step in steps]
        rewards, labels = rewards + own, labels + right
        if right.count(False) == 1 and len(steps) > 1:
            found.append(own.index(min(own)) == right.index(False))
            chances.append(1 / len(steps))

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if len(values) else None

    return {
        "responses": len(responses),
        "right_steps": labels.count(True),
        "wrong_steps": labels.count(False),
        "auc": area_under_curve(rewards, labels),
        "mean_reward_right_step": mean([reward for reward, right in zip(rewards, labels, strict=True) if right]),
        "mean_reward_wrong_step": mean([reward for reward, right in zip(rewards, labels, strict=True) if not right]),
        "responses_with_one_wrong_step": len(found),
        "lowest_is_the_wrong_step": mean(found),
        "chance": mean(chances),
        "outcome_auc": area_under_curve([r.reward_sum for r in responses], [r.right for r in responses]),
    }
