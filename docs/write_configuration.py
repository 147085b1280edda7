# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/configuration.md: prime_ext's keys, from comments in its YAML files.

python docs/write_configuration.py
"""

import re
from pathlib import Path

from prime_ext.methods.changed_keys import read_keys
from prime_ext.utils.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
CONFIG = ROOT / "prime_ext" / "config"
# File, and the section of a run's configuration that it becomes.
SECTIONS = {
    "prime/prime.yaml": "prime",
    **{
        f"prime/process/{name}.yaml": "prime.process"
        for name in ("kl", "tokens", "steps", "step_scorer")
    },
    "prime/anchor/ema.yaml": "prime.anchor",
    "prime/turns/rewards.yaml": "prime.turns",
    "chain/pspo_wrs.yaml": "prime.process",
    "chain/cn_ppo.yaml": "prime.process",
    "prm/frozen.yaml": "prm",
    "prm_model/verl.yaml": "prm",
    "prm/implicit_prm.yaml": "prm",
    **{
        f"step_scorer/{name}.yaml": "step_scorer"
        for name in ("local", "token_classification", "server", "judge")
    },
    "transcripts.yaml": "",
    "offline_prm_settings.yaml": "",
    "step_rm.yaml": "",
}
TITLES = {
    "transcripts.yaml": "Transcripts",
    "offline_prm_settings.yaml": "Offline implicit PRMs",
    "step_rm.yaml": "Step reward models",
}
HEAD = """# Configuration reference

Keys that prime_ext adds to verl's, written from the comments of the YAML files in
[`prime_ext/config`](../../prime_ext/config) by `python docs/write_configuration.py`. All other keys are verl's own and
keep their meaning. Sections are chosen whole, with the keys that the choice reads: `variant=paper`,
`prime/process=steps`, `prime/anchor=ema`, `prime/turns=rewards`, `prm=frozen`, `chain@prime.process=cn_ppo`,
`step_scorer=server`.

## Variants

What each variant runs with; a dash: the key is not there. `prime-ext config variant=paper` prints all keys.

"""  # noqa: E501
OTHERS = ("step_scorer", "pspo_wrs", "on_policy_distillation")
_KEY = re.compile(r"( *)([\w@/]+):(?: +(.*))?$")


def get_keys(text: str, section: str) -> list[tuple[str, str, str]]:
    """Return name, default ("" of a section) and comment of every key with a comment, in order."""
    keys: list[tuple[str, str, str]] = []
    above: list[tuple[int, str]] = [(-1, section)] if section else []
    comment: list[str] = []
    for line in text.splitlines():
        match = _KEY.match(line)
        if line.startswith("# SPDX"):
            continue
        if line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif match:
            indent = len(match[1])
            name = match[2]
            value = match[3] or ""
            while above and above[-1][0] >= indent:
                above.pop()
            key = ".".join([*(part for _, part in above), name])
            if comment and name != "defaults":
                keys.append((key, value, " ".join(comment)))
            comment = []
            if not value:
                above.append((indent, name))
        else:
            comment = []
    return keys


def format_variants() -> str:
    """Return a table: the keys that define variants, a column for each of them."""
    keys = {name: read_keys(name) for name in ("distilled", "paper", "guarded", "rloo", *OTHERS)}
    names = dict.fromkeys(
        key for values in keys.values() for key in values if key != "prime.variant"
    )
    rows = [["key", *(f"`{name}`" for name in keys)], ["---"] * (len(keys) + 1)]
    for name in names:
        rows.append(
            [
                f"`{name}`",
                *(_shown(values[name]) if name in values else "-" for values in keys.values()),
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _shown(value: object) -> str:
    return "null" if value is None else str(value).lower()


def page() -> str:
    """Return the complete page."""
    parts = [HEAD, format_variants()]
    described = set()
    for name, section in SECTIONS.items():
        parts.append(f"\n## {TITLES.get(name, f'`{section}`')} (`{name}`)\n\n")
        for key, value, comment in get_keys((CONFIG / name).read_text(encoding="utf-8"), section):
            # Keys of several choices are described at the first of them.
            if (key, value) not in described or not section:
                parts.append(f"- **`{key}`**{f' = `{value}`' if value else ''}: {comment}\n")
            described.add((key, value))
    return "".join(parts)


if __name__ == "__main__":
    write_text(PAGE, page())
