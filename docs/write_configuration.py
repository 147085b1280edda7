# SPDX-License-Identifier: Apache-2.0
"""docs/reference/configuration.md: every key that prime_ext adds, from the comments in its YAML files.

python docs/write_configuration.py
"""

import re
from pathlib import Path

from omegaconf import OmegaConf

from prime_ext.config.compose import compose_config
from prime_ext.utils.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
CONFIG = ROOT / "prime_ext" / "config"
# File, and the section of a run's configuration that it becomes.
SECTIONS = {
    "prime/prime.yaml": "prime",
    "chain/plain.yaml": "prime.process",
    "prm/implicit_prm.yaml": "prm",
    "pspo/pspo.yaml": "pspo",
    "step_scorer/step_scorer.yaml": "step_scorer",
    "offline_prm_common.yaml": "",
    "step_rm.yaml": "",
}
TITLES = {"offline_prm_common.yaml": "Offline implicit PRMs", "step_rm.yaml": "Step reward models"}
HEAD = """# Configuration reference

Keys that prime_ext adds to verl's, with the defaults of a run, written from the comments of the YAML files in
[`prime_ext/config`](../../prime_ext/config) by `python docs/write_configuration.py`. All other keys are verl's own and
keep their meaning. `variant=distilled` (the default), `guarded`, `paper` and others set several of them at once:
[`config/variant`](../../prime_ext/config/variant).
"""
_KEY = re.compile(r"( *)([\w@/]+):(?: +(.*))?$")


def keys_of(text: str, section: str) -> list[tuple[str, str, str]]:
    """Name, default ("" of a section) and comment of every key with a comment, in order."""
    found: list[tuple[str, str, str]] = []
    above: list[tuple[int, str]] = [(-1, section)] if section else []
    comment: list[str] = []
    for line in text.splitlines():
        match = _KEY.match(line)
        if line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif match:
            indent, name, value = len(match[1]), match[2], match[3] or ""
            while above and above[-1][0] >= indent:
                above.pop()
            key = ".".join([*(part for _, part in above), name])
            if comment and name != "defaults":
                found.append((key, value, " ".join(comment)))
            comment = []
            if not value:
                above.append((indent, name))
        else:
            comment = []
    return found


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    of_variant = compose_config("prime_trainer", [])
    for name, section in SECTIONS.items():
        parts.append(f"\n## {TITLES.get(name, f'`{section}`')} (`{name}`)\n\n")
        for key, value, comment in keys_of((CONFIG / name).read_text(encoding="utf-8"), section):
            default = f" = `{value}`" if value else ""
            chosen = OmegaConf.select(of_variant, key) if section.startswith(("prime", "prm")) else None
            if value and "${" not in value and chosen is not None and chosen != OmegaConf.create(f"v: {value}").v:
                default = f" = `{str(chosen).lower()}` by `variant=distilled`, else `{value}`"
            parts.append(f"- **`{key}`**{default}: {comment}\n")
    return "".join(parts)


if __name__ == "__main__":
    write_text(PAGE, page())
