# SPDX-License-Identifier: Apache-2.0
"""The tasks of ``methods.yaml`` by name: compact chains, and the quickstart's last-digit chains."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from prime_ext.tasks import last_digit_chain as last_digit
from recipes.lab.compact_chain import CompactChain
from recipes.lab.settings import FILE
from recipes.quickstart.data import write_data
from recipes.quickstart.tokenizer import BOS, EOS, PAD, VOCABULARY


@dataclass(frozen=True)
class LastDigitChain:
    """The quickstart's task with its tokenizer, model and warm start: see ``prime_ext.tasks.last_digit_chain``."""

    chain_lengths: tuple[int, ...] = last_digit.CHAIN_LENGTHS
    mean_error: float = 0.25
    limit: int = 48
    flipped: float = 0.0
    evaluate_every: int = 640
    settings: Mapping[str, Any] = field(default_factory=dict)
    pad, eos = VOCABULARY.index(PAD), VOCABULARY.index(EOS)

    @cached_property
    def pools(self) -> dict[bool, list[last_digit.Problem]]:
        """Problems for training, and held-out ones."""
        draw = last_digit.generate_problems
        return {False: draw("train", 8192, 0, self.chain_lengths), True: draw("test", 2000, 0, self.chain_lengths)}

    def draw(self, count: int, generator: torch.Generator, held_out: bool = False) -> list[last_digit.Problem]:
        pool = self.pools[held_out]
        return [pool[index] for index in torch.randperm(len(pool), generator=generator)[:count].tolist()]

    def prompts(self, problems: Sequence[last_digit.Problem]) -> torch.Tensor:
        width = 2 * max(self.chain_lengths) + 3
        ids = [[VOCABULARY.index(token) for token in (BOS, *problem.prompt)] for problem in problems]
        return torch.tensor([[self.pad] * (width - len(row)) + row for row in ids])

    def verify(self, problems: Sequence[last_digit.Problem], response_BT: torch.Tensor) -> torch.Tensor:
        texts = ("".join(tokens) for tokens in self._tokens(response_BT))
        return torch.tensor([last_digit.outcome_reward(t, str(p.answer)) for p, t in zip(problems, texts, strict=True)])

    def step_labels(
        self, problems: Sequence[last_digit.Problem], response_BT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        label_BT, where_BT = torch.zeros(response_BT.shape), torch.zeros(response_BT.shape, dtype=torch.bool)
        for row, (problem, tokens) in enumerate(zip(problems, self._tokens(response_BT), strict=True)):
            position = [t for t, token in enumerate(tokens) for _ in token]
            for check in last_digit.check_steps(problem.prompt, "".join(tokens)):
                if check.result is not None:
                    label_BT[row, position[check.result]] = float(check.locally_right)
                    where_BT[row, position[check.result]] = True
        return label_BT, where_BT

    def warm_start(self, folder: Path) -> None:
        # Here, not above: the trainer of transformers takes seconds to import.
        from recipes.quickstart.sft import train

        with tempfile.TemporaryDirectory() as data:
            write_data(Path(data), mean_error=self.mean_error, chain_lengths=self.chain_lengths)
            train(Path(data) / "sft.parquet", folder)

    def _tokens(self, response_BT: torch.Tensor) -> list[list[str]]:
        """The text of each token up to ``<eos>``, nothing for special ones."""
        texts = ["" if token in (PAD, BOS, EOS) else token for token in VOCABULARY]
        rows = (row[: row.index(self.eos)] if self.eos in row else row for row in response_BT.tolist())
        return [[texts[token] for token in row] for row in rows]


TASKS = {name: CompactChain(**values) for name, values in FILE["compact_tasks"].items()} | {
    name: LastDigitChain(**values) for name, values in FILE["last_digit_tasks"].items()
}
