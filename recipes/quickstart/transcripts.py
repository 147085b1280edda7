# SPDX-License-Identifier: Apache-2.0
"""A self-contained HTML page of responses whose tokens are coloured by their process reward.

All text that comes from a model or from data is escaped; the page (``transcripts.html`` beside this file) has no script
and loads nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import jinja2
import numpy as np

from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.process_scores import ScoredResponse, ScoredStep

# Two hues that colour-blind readers can tell apart; white is zero.
REWARDED, PUNISHED = (33, 102, 172), (214, 96, 20)


def colour(strength: float) -> str:
    """CSS background of a token: white at 0, full blue at 1, full orange at -1 and beyond."""
    target = REWARDED if strength > 0 else PUNISHED
    return "#" + "".join(f"{round(255 + (channel - 255) * min(abs(strength), 1.0)):02x}" for channel in target)


def step_note(step: ScoredStep) -> str:
    """Say in words what is wrong with a step; empty if nothing is."""
    if step.check.locally_right:
        return ""
    if step.result_token is None:
        return "✗ not a step of the form a∘b=c"
    reasons = []
    if not step.check.follows_prompt:
        reasons.append("does not apply the next operation to the value before it")
    if not step.check.arithmetic_right:
        left, operator, operand = int(step.check.text[0]), step.check.text[1], int(step.check.text[2])
        right = task.apply_operation(left, operator, operand)
        reasons.append(f"{left}{operator}{operand} is {right}, not {step.check.text[4]}")
    return "✗ wrong step: " + "; ".join(reasons)


def parts(response: ScoredResponse) -> Iterator[tuple[ScoredStep | None, list[int]]]:
    """The places of the tokens, those of a step together."""
    steps, place = {step.first_token: step for step in response.steps}, 0
    while place < len(response.tokens):
        step = steps.get(place)
        last = place if step is None else step.last_token
        yield step, list(range(place, last + 1))
        place = last + 1


def render(sections: list[tuple[str, str, list[ScoredResponse]]], statistics: dict[str, dict], *, beta: float) -> str:
    """Render the page.

    Args:
        sections: title, one sentence, and responses of each group.
        statistics: per policy, what ``process_scores.step_statistics`` returns on its responses.
        beta: the PRM's beta, shown in the explanation.
    """
    rewards = [abs(token.reward) for _, _, group in sections for response in group for token in response.tokens]
    # What is shown in full colour: one outlier hides nothing.
    scale = max(float(np.quantile(rewards, 0.98)), 1e-6) if rewards else 1.0
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    page.filters["number"] = lambda value, form: "–" if value is None else format(value, form)
    known = {"sections": sections, "statistics": statistics, "beta": beta, "scale": scale}
    return page.get_template("transcripts.html").render(known, colour=colour, parts=parts, note=step_note, exp=np.exp)
