# SPDX-License-Identifier: Apache-2.0
"""What the PRM reads in place of the rollout's own tokens (``prm.inputs``). Nothing here imports verl or torch."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Switch, Text

# The template for data sources that have none of their own.
DEFAULT = "default"
PROMPT, GOLD, SIBLING = "prompt", "gold", "sibling"
# Keys of the row's extra_info, and of what the reward function says of the response.
OF_ROW, OF_REWARD = "extra_info.", "info."
# Other braces are text: solutions are full of \boxed{}.
FIELD = re.compile(r"\{(prompt|gold|sibling|(?:extra_info|info)\.\w+)\}")


@dataclass(frozen=True, config=STRICT)
class InputSettings:
    """``prm.inputs``: a prompt that says more than the policy's, and tokens of the PRM's own tokenizer."""

    retokenize: Switch
    template: Text | Mapping[str, Text] | None

    @property
    def rewrites(self) -> bool:
        """Whether the PRM reads anything but the rollouts themselves."""
        return self.retokenize or bool(self.template)

    @property
    def templates(self) -> Mapping[str, str]:
        """Templates by data source."""
        return {DEFAULT: self.template} if isinstance(self.template, str) else self.template or {}

    @property
    def fields(self) -> set[str]:
        """What the templates ask for."""
        return {name for template in self.templates.values() for name in FIELD.findall(template)}

    @property
    def columns(self) -> list[str]:
        """The columns of the data that :func:`row_text` reads for that."""
        needed = {
            "reward_model": GOLD in self.fields,
            "extra_info": any(name.startswith(OF_ROW) for name in self.fields),
        }
        return [column for column, wanted in needed.items() if wanted]

    def template_of(self, data_source: str) -> str | None:
        """The template for a row; None: its prompt stays as it is."""
        return self.templates.get(data_source, self.templates.get(DEFAULT))

    def problems(self) -> Iterable[str]:
        """What does not go together."""
        for source, template in self.templates.items():
            key = "prm.inputs.template" + ("" if isinstance(self.template, str) else f".{source}")
            found = FIELD.findall(template)
            if PROMPT not in found:
                yield f"{key} lacks {{prompt}}, the place of the user's message"
            if set(found) <= {PROMPT}:
                yield f"{key} adds nothing to {{prompt}}: use {{gold}}, {{sibling}}, {{extra_info.KEY}} or {{info.KEY}}"


def row_text(field: str, row: Mapping[str, Any]) -> str | None:
    """What a row of the data has for ``gold`` or ``extra_info.KEY``, as text; None if it is not there, or empty."""
    section, name = ("reward_model", "ground_truth") if field == GOLD else ("extra_info", field.removeprefix(OF_ROW))
    values = row[section]
    value = values.get(name) if isinstance(values, Mapping) else None
    return None if value is None or not str(value).strip() else str(value)
