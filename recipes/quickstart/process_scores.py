# SPDX-License-Identifier: Apache-2.0
"""Process rewards of single responses, and how well they find the wrong steps."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.respond import HeldOutProblem, Response, prompt_token_ids

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


def response_log_probs(
    model: PreTrainedModel, prompts: list[list[int]], responses: list[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the response tokens at temperature 1, (B, T), and their mask."""
    length = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
    width = max(len(response) for response in responses)
    ids_BL = torch.zeros(len(prompts), length, dtype=torch.long)
    attention_BL = torch.zeros_like(ids_BL)
    position_BT = torch.zeros(len(prompts), width, dtype=torch.long)
    mask_BT = torch.zeros(len(prompts), width)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        ids_BL[row, : len(prompt) + len(response)] = torch.tensor([*prompt, *response])
        attention_BL[row, : len(prompt) + len(response)] = 1
        position_BT[row, : len(response)] = torch.arange(len(prompt), len(prompt) + len(response))
        mask_BT[row, : len(response)] = 1
    with torch.inference_mode():
        logits_BLV = model(input_ids=ids_BL, attention_mask=attention_BL).logits
    # The logits at a position are about the next token. Padding reads position 0, which has none before it: clamped.
    log_prob_BTV = logits_BLV.log_softmax(-1).gather(
        1, (position_BT - 1).clamp(min=0)[..., None].expand(-1, -1, logits_BLV.shape[-1])
    )
    return log_prob_BTV.gather(-1, ids_BL.gather(1, position_BT)[..., None])[..., 0], mask_BT


def locate_steps(prompt: str, response: Response, token_texts: list[str]) -> list[ScoredStep]:
    """Find the tokens of every step. ``token_texts`` joined without special tokens is the response's text."""
    token_at: dict[int, int] = {}
    offset = 0
    for index, text in enumerate(token_texts):
        for character in range(len(text)):
            token_at[offset + character] = index
        offset += len(text)
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
    problems: list[HeldOutProblem],
    responses: list[Response],
    *,
    beta: float,
) -> list[ScoredResponse]:
    """Score every response token with r_t = beta (log pi_prm - log pi_reference)."""
    scored: list[ScoredResponse] = []
    for first in range(0, len(problems), BATCH_SIZE):
        some = list(zip(problems[first : first + BATCH_SIZE], responses[first : first + BATCH_SIZE], strict=True))
        prompt_ids = [prompt_token_ids(tokenizer, problem.prompt) for problem, _ in some]
        response_ids = [response.token_ids for _, response in some]
        prm_BT, mask_BT = response_log_probs(prm, prompt_ids, response_ids)
        reference_BT, _ = response_log_probs(reference, prompt_ids, response_ids)
        reward_BT = process_rewards(log_ratio(prm_BT, reference_BT, mask_BT), beta)
        for row, (problem, response) in enumerate(some):
            names = tokenizer.convert_ids_to_tokens(response.token_ids)
            special = set(tokenizer.all_special_tokens)
            columns = (reward_BT[row].tolist(), prm_BT[row].tolist(), reference_BT[row].tolist())
            # Special tokens have no text of their own in the response; <eos> is shown under its name.
            texts = ["" if name in special else name for name in names]
            scored.append(
                ScoredResponse(
                    problem,
                    response.text,
                    task.outcome_reward(response.text, problem.ground_truth) == 1.0,
                    [ScoredToken(name, *(column[t] for column in columns)) for t, name in enumerate(names)],
                    locate_steps(problem.prompt, response, texts),
                )
            )
    return scored


def area_under_curve(positive: list[float], negative: list[float]) -> float | None:
    """Probability that a positive score is above a negative one (ties count half); None if either list is empty."""
    if not positive or not negative:
        return None
    difference = np.asarray(positive)[:, None] - np.asarray(negative)[None, :]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def step_statistics(responses: list[ScoredResponse]) -> dict:
    """How well the process reward of the result digit tells locally right from locally wrong steps.

    The PRM never saw a label of a step. ``lowest_is_the_wrong_step``: among responses with exactly one wrong step, the
    share in which that step's result digit has the lowest reward of all result digits; ``chance`` is what guessing a
    step at random would give on the same responses.
    """
    right: list[float] = []
    wrong: list[float] = []
    hits = single = 0
    chance = 0.0
    for response in responses:
        steps = [step for step in response.steps if step.result_token is not None]
        rewards = [response.tokens[step.result_token].reward for step in steps]
        bad = [index for index, step in enumerate(steps) if not step.check.locally_right]
        right += [reward for index, reward in enumerate(rewards) if index not in bad]
        wrong += [rewards[index] for index in bad]
        if len(bad) == 1 and len(steps) > 1:
            single += 1
            hits += min(range(len(rewards)), key=rewards.__getitem__) == bad[0]
            chance += 1 / len(steps)
    return {
        "responses": len(responses),
        "right_steps": len(right),
        "wrong_steps": len(wrong),
        "auc": area_under_curve(right, wrong),
        "mean_reward_right_step": float(np.mean(right)) if right else None,
        "mean_reward_wrong_step": float(np.mean(wrong)) if wrong else None,
        "responses_with_one_wrong_step": single,
        "lowest_is_the_wrong_step": hits / single if single else None,
        "chance": chance / single if single else None,
        "outcome_auc": area_under_curve(
            [response.reward_sum for response in responses if response.right],
            [response.reward_sum for response in responses if not response.right],
        ),
    }
