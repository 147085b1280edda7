# SPDX-License-Identifier: Apache-2.0
"""A self-contained HTML page of responses whose tokens are coloured by their process reward.

All text that comes from a model or from data is escaped; the page has no script and loads nothing.
"""

from html import escape

import numpy as np

from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.process_scores import ScoredResponse, ScoredStep, ScoredToken

# Two hues that colour-blind readers can tell apart; white is zero.
REWARDED, PUNISHED = (33, 102, 172), (214, 96, 20)

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1c2530; background: #f4f5f7;
  margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 160px; }
h1 { font-size: 25px; margin: 0 0 6px; } h2 { font-size: 19px; margin: 34px 0 4px; }
p { margin: 6px 0; max-width: 84ch; } .quiet { color: #5b6572; }
.box { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; padding: 14px 18px; margin: 14px 0; }
.legend { display: flex; flex-wrap: wrap; gap: 8px 26px; align-items: center; }
.scale { display: inline-flex; align-items: center; gap: 8px; font-variant-numeric: tabular-nums; }
.ramp { width: 190px; height: 15px; border-radius: 3px; border: 1px solid #cfd5dc; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 0 4px 26px; border-bottom: 1px solid #e8ebef; font-weight: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: #5b6572; vertical-align: bottom; }
.card { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; padding: 9px 16px 12px; margin: 9px 0; }
.head { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; font-size: 13.5px; color: #5b6572; }
.prompt { font: 600 15px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; color: #1c2530; }
.outcome { border-radius: 10px; padding: 0 9px; font-weight: 600; }
.outcome.right { background: #e1f2e6; color: #1b6b36; } .outcome.wrong { background: #fbe3e4; color: #a01c26; }
.tokens { font: 16px/1.9 ui-monospace, "DejaVu Sans Mono", monospace; margin-top: 4px; overflow-wrap: anywhere; }
.step { display: inline-block; line-height: 1.6; margin-right: 7px; padding-bottom: 1px;
  border-bottom: 3px solid transparent; }
.step.wrong { border-bottom-color: #c4161c; }
.step.wrong .result { outline: 2px solid #c4161c; outline-offset: -1px; }
.token { position: relative; display: inline-block; padding: 0 2.5px; border-radius: 3px; line-height: 1.55; }
.token.special { font-size: 12px; }
.token .tip { display: none; position: absolute; z-index: 2; left: 0; top: calc(100% + 7px); width: max-content;
  background: #1c2530; color: #fff; font: 12.5px/1.5 system-ui, "DejaVu Sans", sans-serif; padding: 7px 11px;
  border-radius: 6px; white-space: pre; pointer-events: none; text-align: left; }
.token:hover .tip, .token:focus .tip { display: block; }
.token:hover, .token:focus { box-shadow: 0 0 0 2px #1c2530; outline: none; z-index: 1; }
#only-wrong:checked ~ section .card:not(.has-wrong-step) { display: none; }
"""


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
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Process rewards, token by token</title><style>{STYLE}</style></head><body><main>
<h1>Process rewards, token by token</h1>
<p>Each problem is a start digit and 4 to 7 operations, applied from left to right, keeping only the last digit. The
response shows every step and boxes the result. The policy was rewarded for the final answer only, plus what the
process reward model (PRM) makes of it. <b>The PRM never saw which step is right:</b> it was trained, during the run, to
tell right answers from wrong ones, and the reward of a token is r<sub>t</sub> = β (log π<sub>prm</sub> − log
π<sub>ref</sub>) with β = {beta:g}, where the reference is the warm-started model. If it works, a wrong step shows up
as an orange result digit inside a red frame.</p>
<div class="box"><div class="legend">
<span class="scale">punished {-scale:.2f}<span class="ramp" style="background:linear-gradient(90deg,{ramp})"></span>
{scale:+.2f} rewarded</span>
<span><span class="step wrong" style="margin:0"><span class="token">4*3=<span class="token result">1</span></span>
</span> a step that the rule finds wrong</span>
<span class="quiet">Point at a token, or tab to it, for its numbers.</span></div></div>
<div class="box">{_statistics_table(statistics)}
<p class="quiet">AUC: how often a right step's result digit has a higher r than a wrong step's (0.5 is chance, 1 is
perfect). A step is right if it applies the next operation to the value stated before it, be that right or wrong, and
the arithmetic is true; so a step after a mistake can be right. Σr is the PRM's logit for "the answer is right".
Numbers are over all responses of the row, not only those printed below. Rewards here are as the PRM gives them: in
training they are also scaled, summed to returns and compared with the other samples of the same problem.</p></div>
<input type="checkbox" id="only-wrong"> <label for="only-wrong">show only responses with a wrong step</label>
{body}
</main></body></html>
"""
