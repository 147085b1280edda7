# SPDX-License-Identifier: Apache-2.0
"""A self-contained HTML page of responses whose tokens are coloured by their process reward.

All text that comes from a model or from data is escaped; the page (``transcripts.html`` beside this file) has no script
and loads nothing.
"""

from html import escape
from pathlib import Path
from string import Template

import numpy as np

from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.process_scores import ScoredResponse, ScoredStep, ScoredToken

# Two hues that colour-blind readers can tell apart; white is zero.
REWARDED, PUNISHED = (33, 102, 172), (214, 96, 20)

PAGE = Template((Path(__file__).parent / "transcripts.html").read_text(encoding="utf-8"))


def reward_scale(responses: list[ScoredResponse]) -> float:
    """The |reward| shown in full colour: the 98th percentile over all tokens, so that one outlier hides nothing."""
    rewards = [abs(token.reward) for response in responses for token in response.tokens]
    return max(float(np.quantile(rewards, 0.98)), 1e-6) if rewards else 1.0


def colour(reward: float, scale: float) -> str:
    """CSS background of a token: white at 0, full blue at +scale, full orange at -scale and beyond."""
    strength = min(abs(reward) / scale, 1.0)
    target = REWARDED if reward > 0 else PUNISHED
    return "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in target)


def _token_html(token: ScoredToken, scale: float, *, is_result: bool, note: str) -> str:
    strength = min(abs(token.reward) / scale, 1.0)
    classes = "token" + (" result" if is_result else "") + (" special" if token.text.startswith("<") else "")
    tip = (
        f"token {token.text}\nprocess reward r = {token.reward:+.4f}\n"
        f"log π_prm = {token.log_prob_prm:.4f}\nlog π_ref = {token.log_prob_reference:.4f}"
    ) + (f"\n{note}" if note else "")
    text_colour = "#fff" if strength > 0.7 else "#1c2530"
    return (
        f'<span class="{classes}" tabindex="0" style="background:{colour(token.reward, scale)};color:{text_colour}">'
        f'{escape(token.text)}<span class="tip">{escape(tip)}</span></span>'
    )


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


def _card(response: ScoredResponse, scale: float) -> str:
    step_at = {t: step for step in response.steps for t in range(step.first_token, step.last_token + 1)}
    parts, index = [], 0
    while index < len(response.tokens):
        step = step_at.get(index)
        last = index if step is None else step.last_token
        note = "" if step is None else step_note(step)
        tokens = "".join(
            _token_html(response.tokens[t], scale, is_result=step is not None and t == step.result_token, note=note)
            for t in range(index, last + 1)
        )
        parts.append(tokens if step is None else f'<span class="step{" wrong" if note else ""}">{tokens}</span>')
        index = last + 1
    wrong = sum(not step.check.locally_right for step in response.steps)
    outcome = "right" if response.right else "wrong"
    belief = 1 / (1 + np.exp(-response.reward_sum))
    return (
        f'<div class="card{" has-wrong-step" if wrong else ""}"><div class="head">'
        f'<span class="prompt">{escape(response.problem.prompt)}</span>'
        f'<span class="outcome {outcome}">answer {outcome}</span>'
        f"<span>right answer {escape(response.problem.ground_truth)}</span>"
        f"<span>{wrong} of {len(response.steps)} steps wrong</span>"
        f"<span>Σr = {response.reward_sum:+.2f}: the PRM gives it {100 * belief:.0f} %</span></div>"
        f'<div class="tokens">{"".join(parts)}</div></div>'
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _statistics_table(statistics: dict[str, dict]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{s['responses']:,}</td><td>{s['right_steps']:,} / {s['wrong_steps']:,}</td>"
        f"<td><b>{_number(s['auc'], '.3f')}</b></td>"
        f"<td>{_number(s['mean_reward_right_step'], '+.3f')} / {_number(s['mean_reward_wrong_step'], '+.3f')}</td>"
        f"<td>{_number(s['lowest_is_the_wrong_step'], '.0%')} (chance {_number(s['chance'], '.0%')})</td>"
        f"<td>{_number(s['outcome_auc'], '.3f')}</td></tr>"
        for name, s in statistics.items()
    )
    return (
        "<table><thead><tr><th>responses of the</th><th>number</th><th>steps<br>right / wrong</th>"
        "<th>AUC of r on the<br>result digit</th><th>mean r<br>right / wrong</th>"
        "<th>lowest r is the<br>one wrong step</th><th>AUC of Σr<br>for the answer</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def render(sections: list[tuple[str, str, list[ScoredResponse]]], statistics: dict[str, dict], *, beta: float) -> str:
    """Render the page.

    Args:
        sections: title, one sentence, and responses of each group.
        statistics: per policy, what ``process_scores.step_statistics`` returns on its responses.
        beta: the PRM's beta, shown in the explanation.
    """
    scale = reward_scale([response for _, _, responses in sections for response in responses])
    ramp = ", ".join(colour(scale * step / 10, scale) for step in range(-10, 11))
    body = "".join(
        f"<section><h2>{escape(title)}</h2><p class='quiet'>{escape(sentence)}</p>"
        + "".join(_card(response, scale) for response in responses)
        + "</section>"
        for title, sentence, responses in sections
    )
    return PAGE.substitute(
        beta=f"{beta:g}",
        lowest=f"{-scale:.2f}",
        highest=f"{scale:+.2f}",
        ramp=ramp,
        statistics=_statistics_table(statistics),
        body=body,
    )
