# SPDX-License-Identifier: Apache-2.0
"""Style and frame of the page: two hues that color-blind readers tell apart, light and dark."""

# Levels of a color, from white to full, for each sign.
LEVELS = 6
# How much of the hue each level has.
_SHARES = (0.10, 0.22, 0.37, 0.53, 0.70, 0.94)
_HUES = {"u": "--blue", "d": "--orange"}
_INPUTS = {"p": "by-process", "a": "by-advantage"}


def _level_rules() -> str:
    """Return the rules of the classes pu1 (process reward, above 0) to ad6 (advantage, below)."""
    rules = []
    for channel, chosen in _INPUTS.items():
        for sign, hue in _HUES.items():
            for level, share in enumerate(_SHARES, start=1):
                ink = "; color: #fff" if level == LEVELS else ""
                rules.append(
                    f"#{chosen}:checked ~ main .{channel}{sign}{level}"
                    f" {{ background: rgb(var({hue}) / {share}){ink} }}"
                )
    return "\n".join(rules)


_STYLE = """\
:root { color-scheme: light dark; --ink: #1b2430; --paper: #ffffff; --soft: #f5f7f9; --line: #d9dfe6;
  --quiet: #5b6773; --blue: 33 102 172; --orange: 179 88 6; --good: #0b5cad; --bad: #9a4a00; --odd: #7a1fa2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --paper: #12161b; --soft: #1a2027; --line: #313b46;
  --quiet: #9aa7b4; --blue: 50 124 204; --orange: 190 104 20; --good: #7db9f5; --bad: #f0a860; --odd: #d3a2ee; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; margin: 0; color: var(--ink);
  background: var(--paper); }
body > input { position: absolute; opacity: 0; pointer-events: none; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 120px; overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em; margin: 0 0 8px; }
h2 { font-size: 1.3rem; margin: 0; } h3 { font-size: 1rem; margin: 0; } header p { margin: 0 0 8px; }
h2, h3 { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: center; }
.over, .hint, dt, .cut { color: var(--quiet); } .over { font-size: .9rem; } .hint { font-size: .9rem; }
code, .text, .prompt { font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace; }
code { font-size: .9em; } header code { white-space: nowrap; }
section { border-top: 2px solid var(--line); margin-top: 40px; padding-top: 20px; }
section > .hint { margin: 4px 0 12px; }
article { margin-top: 18px; border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 26px; margin: 12px 0; font-variant-numeric: tabular-nums; }
.facts > div { min-width: 0; } dt { font-size: .8rem; line-height: 1.3; }
dd { margin: 0; font-weight: 600; white-space: pre-wrap; }
.how { margin: 0 0 14px; } .how li { margin: 4px 0; max-width: 90ch; }
details dd { font-weight: 400; } summary { color: var(--quiet); cursor: pointer; font-size: .9rem; }
.chip { font-size: .85rem; font-weight: 600; line-height: 1.2; border: 1px solid currentColor; border-radius: 99px;
  padding: 3px 10px; }
.good { color: var(--good); } .bad { color: var(--bad); } .odd { color: var(--odd); } .quiet { color: var(--quiet); }
.prompt, .text { white-space: pre-wrap; background: var(--soft); border-radius: 8px; padding: 10px 12px;
  font-size: .92rem; }
.prompt { max-height: 320px; overflow: auto; } .gold { margin: 8px 0 0; }
.text { line-height: 1.9; background: none; border: 1px solid var(--line); margin-bottom: 10px; overflow: clip; }
.text i { font-style: normal; padding: 2px 0; border-radius: 3px; } .text s { opacity: .35; text-decoration: none; }
.text sup { color: var(--quiet); font-size: .7em; margin: 0 1px 0 3px; user-select: none; }
.text .other { color: var(--quiet); border-bottom: 1px dashed var(--quiet); }
.text i:hover { outline: 2px solid currentColor; }
.text i:hover::after { content: attr(data-v); position: fixed; left: 50%; bottom: 18px; transform: translateX(-50%);
  width: max-content; max-width: min(94vw, 900px); padding: 9px 16px; border-radius: 10px; z-index: 3;
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; white-space: normal; background: var(--ink);
  color: var(--paper); box-shadow: 0 4px 24px #0006; pointer-events: none; }
.legend { position: sticky; top: 0; z-index: 2; background: var(--paper); border: 1px solid var(--line);
  border-radius: 10px; display: flex; flex-wrap: wrap; gap: 6px 20px; align-items: center; padding: 8px 14px; }
.choice { display: inline-flex; gap: 6px; align-items: center; }
label { border: 1px solid var(--line); border-radius: 99px; padding: 2px 12px; cursor: pointer; }
#by-process:checked ~ main label[for=by-process], #by-advantage:checked ~ main label[for=by-advantage] {
  background: var(--ink); color: var(--paper); border-color: var(--ink); }
#by-process:focus-visible ~ main label[for=by-process], #by-advantage:focus-visible ~ main label[for=by-advantage] {
  outline: 3px solid rgb(var(--blue)); outline-offset: 2px; }
.bar { display: none; align-items: center; font-variant-numeric: tabular-nums; font-size: .9rem; }
.bar i { width: 15px; height: 18px; border: 1px solid var(--line); border-width: 1px 0; }
.bar span { margin: 0 8px; } .bar .mid { color: var(--quiet); }
#by-process:checked ~ main .of-process, #by-advantage:checked ~ main .of-advantage { display: inline-flex; }
@media (hover: none) { .text i { cursor: pointer; } }
@media (max-width: 700px) { main { padding: 18px 12px 110px; } h1 { font-size: 1.5rem; } article { padding: 12px; }
  .facts { gap: 6px 18px; } .bar i { width: 10px; } .legend > .hint { display: none; } }
@media print { .legend { position: static; } * { print-color-adjust: exact; } }
"""  # noqa: E501
EXPLANATION = """\
<details class=how><summary>What do the numbers mean?</summary><ul>
<li><b>Verdict</b>: the verifier's. "Not graded" is a failure of the verifier: the response leaves its group, unless
<code>prime.verifier.on_failure</code> says otherwise.</li>
<li><b>Reward</b>: what the reward manager pays for the response; with <code>algorithm.use_kl_in_reward</code> less the
KL penalty.</li>
<li><b>Process reward</b> of a token: <code>beta * (log pi_prm - log pi_ref)</code>, or the log-ratio of teacher and
policy, before any weight. A step's or turn's is the sum over its tokens. A <b>step score</b> is that of a step reward
model, from 0 to 1.</li>
<li><b>Return</b>: with a critic its target; else the sum of all rewards from a token on, less the baseline of its
group, with their weights. <b>Advantage</b>: the return after whitening; above 0 the token becomes more likely. With
PRIME-D process rewards are not paid: the policy is pulled towards the PRM as a distribution.</li>
<li><b>Gate</b>: the weight of the PRM, from its accuracy on pairs that it had not been trained on; 0 is shut.</li>
<li><b>Dropped</b> prompts have no advantages: nobody trained on them.</li>
</ul></details>"""  # noqa: E501
FRAME = f"""\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer"><title>TITLE</title><style>
{_STYLE}{_level_rules()}
</style></head><body>
<input type="radio" name="by" id="by-process"><input type="radio" name="by" id="by-advantage">
<main>
CONTENT
</main></body></html>
"""  # noqa: E501
