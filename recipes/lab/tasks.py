# SPDX-License-Identifier: Apache-2.0
"""Tasks of the laboratory: problems, demonstrators with misconceptions, verification, step labels for diagnosis.

The training loop needs of any task: ``pad``, ``eos``, ``limit`` and the fields from ``flipped`` on; ``draw`` for
problems, which are whatever the task makes them; ``prompts``, ``verify``, ``step_labels`` and ``warm_start``.

A *compact chain* is the prompt ``v op1 .. opk ?`` and the response ``v op1 r1 .. opk rk <eos>`` with
``r_i = f[op_i, r_{i-1}]``. Each operation is a random permutation of the values, so that no later step hides an error.
The demonstrators get each fact wrong with a probability of its own and always with the same wrong result; the warm
start imitates them.
"""

import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prime_ext.tasks import last_digit_chain as last_digit
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.files import atomic_path
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, wrong
from recipes.lab.train import Learner, Rollouts, chosen_log_probs, response_logits, warm_up
from recipes.quickstart.data import write_data, write_parquet
from recipes.quickstart.model import BOS, EOS, PAD, VOCABULARY, build_tokenizer

SOURCE = "prime_ext/compact_chain"


@dataclass(frozen=True)
class CompactChain:
    """Chains over a small alphabet, all in tensors. There are so many that hardly any is drawn twice."""

    longest: int = 8
    shortest: int = 8
    n_values: int = 20
    n_operations: int = 10
    mean_error: float = 0.2
    seed: int = 7
    layers: int = 2
    flipped: float = 0.0  # share of the outcomes that training, but not evaluation, sees inverted
    evaluate_every: int = 160  # rollouts between two points of a curve
    settings: Mapping[str, Any] = field(default_factory=dict)  # where the task wants others than the defaults
    pad, bos, eos, question, first_value = 0, 1, 2, 3, 4

    @property
    def limit(self) -> int:
        """Tokens of a response at most."""
        return 2 * self.longest + 2

    @property
    def first_operation(self) -> int:
        return self.first_value + self.n_values

    @cached_property
    def facts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per (operation, value): the result, the demonstrators' wrong result, and how often they take that one."""
        generator, shape = torch.Generator().manual_seed(self.seed), (self.n_operations, self.n_values)
        right = torch.rand(shape, generator=generator).argsort(-1)
        wrong = (right + torch.randint(1, self.n_values, shape, generator=generator)) % self.n_values
        rng = random.Random(self.seed)
        rate = [last_digit.error_probability(self.mean_error, rng) for _ in range(right.numel())]
        return right, wrong, torch.tensor(rate).view(shape)

    def draw(self, count: int, generator: torch.Generator, held_out: bool = False) -> list[torch.Tensor]:
        """Rows of the first value and the operations, -1 behind the last one."""
        start_B1 = torch.randint(self.n_values, (count, 1), generator=generator)
        operation_BK = torch.randint(self.n_operations, (count, self.longest), generator=generator)
        if self.shortest < self.longest:
            length_B1 = torch.randint(self.shortest, self.longest + 1, (count, 1), generator=generator)
            operation_BK[torch.arange(self.longest) >= length_B1] = -1
        return list(torch.cat([start_B1, operation_BK], 1))

    def prompts(self, problems: Sequence[torch.Tensor]) -> torch.Tensor:
        """Token ids ``(B, P)``, left-padded to the same width."""
        problem_BK = torch.stack(list(problems))
        shown_BK = torch.where(problem_BK >= 0, problem_BK + self.first_operation, self.pad)
        shown_BK[:, 0] = problem_BK[:, 0] + self.first_value
        edge_B1 = torch.ones_like(shown_BK[:, :1])
        prompt_BP = torch.cat([edge_B1 * self.bos, shown_BK, edge_B1 * self.question], 1)
        # A stable sort by "is a token" moves the padding to the left.
        return prompt_BP.gather(1, (prompt_BP != self.pad).long().argsort(dim=1, stable=True))

    def demonstrate(self, problems: Sequence[torch.Tensor], error: float, generator: torch.Generator) -> torch.Tensor:
        """Responses ``(B, T)`` of demonstrators whose error rates are ``error`` times the task's; 0 solves."""
        problem_BK = torch.stack(list(problems))
        right, wrong, rate = self.facts
        value_B, parts = problem_BK[:, 0], [problem_BK[:, 0] + self.first_value]
        for operation_B in problem_BK[:, 1:].unbind(1):
            errs_B = torch.rand(len(problem_BK), generator=generator) < error * rate[operation_B, value_B]
            value_B = torch.where(errs_B, wrong[operation_B, value_B], right[operation_B, value_B])
            parts += [operation_B + self.first_operation, value_B + self.first_value]
        response_BT = torch.stack([*parts, torch.full_like(value_B, self.eos)], 1)
        end_B1, position_T = self._end(problem_BK), torch.arange(self.limit)
        response_BT = torch.where(position_T < end_B1, response_BT, self.pad)
        return response_BT.scatter(1, end_B1, self.eos)

    def verify(self, problems: Sequence[torch.Tensor], response_BT: torch.Tensor) -> torch.Tensor:
        """1 for a right final answer, else 0, ``(B,)``."""
        end_B1 = self._end(torch.stack(list(problems)))
        # The last result and <eos> at their places; the values between are the response's own business.
        last_B2 = torch.cat([end_B1 - 1, end_B1], 1)
        right_BT = self.demonstrate(problems, 0.0, torch.Generator())
        return (response_BT.gather(1, last_B2) == right_BT.gather(1, last_B2)).all(1).float()

    def step_labels(
        self, problems: Sequence[torch.Tensor], response_BT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """1 where a step's result is right given the value before it, and the mask of results; ``(B, T)`` both."""
        operation_BK = torch.stack(list(problems))[:, 1:]
        before_BK, shown_BK, after_BK = response_BT[:, 0:-3:2], response_BT[:, 1:-2:2], response_BT[:, 2:-1:2]
        value_BK = (before_BK - self.first_value).clamp(0, self.n_values - 1)
        same_BK = (before_BK == value_BK + self.first_value) & (shown_BK == operation_BK + self.first_operation)
        right_BK = same_BK & (after_BK == self.facts[0][operation_BK, value_BK] + self.first_value)
        label_BT, where_BT = torch.zeros(response_BT.shape), torch.zeros(response_BT.shape, dtype=torch.bool)
        where_BT[:, 2:-1:2] = (operation_BK >= 0) & (after_BK != self.pad)
        label_BT[:, 2:-1:2] = right_BK.float()
        return label_BT * where_BT, where_BT

    def warm_start(self, folder: Path, steps: int = 1500, batch_size: int = 64, lr: float = 3e-3) -> None:
        """Train the model that all methods start from, and write it for ``from_pretrained``."""
        torch.manual_seed(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        size = {"hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 4, "tie_word_embeddings": True}
        special = {"pad_token_id": self.pad, "bos_token_id": self.bos, "eos_token_id": self.eos}
        vocabulary, longest = self.first_operation + self.n_operations, 3 * self.longest + 5
        size |= {"num_hidden_layers": self.layers, "max_position_embeddings": longest, "initializer_range": 0.08}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **size, **special))
        learner = Learner(model, lr, lambda step: warm_up(50)(step) * max(0.03, 1 - step / steps), betas=(0.9, 0.98))
        for _ in range(steps):
            problems = self.draw(batch_size, generator)
            prompt_BP, response_BT = self.prompts(problems), self.demonstrate(problems, 1.0, generator)
            rollouts = Rollouts(prompt_BP, prompt_BP != self.pad, response_BT, response_BT != self.pad)
            learner.minimize(-chosen_log_probs(response_logits(model, rollouts), rollouts)[rollouts.mask_BT].mean())
        with atomic_path(folder) as temporary:
            model.save_pretrained(temporary)

    def _end(self, problem_BK: torch.Tensor) -> torch.Tensor:
        """Position of ``<eos>`` in a response that shows every step, ``(B, 1)``."""
        return 2 * (problem_BK[:, 1:] >= 0).sum(1, keepdim=True) + 1


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


class CompactVerifier:
    """Accept a response to a compact task, through verl, of the right length with the right last character."""

    async def averify(self, response: str, gold: str) -> Verdict:
        verdict = correct if f"{len(response)}{response[-1:]}" == gold else wrong
        return verdict(response[-1:], 0.0)


register_task("compact_chain", CompactVerifier)
register_source(SOURCE, "compact_chain")


def compact_tokenizer(task: CompactChain) -> PreTrainedTokenizerFast:
    """Build the tokenizer of a compact task: values are letters, operations digits.

    A token is one character, so that verl's text round trip changes nothing.
    """
    values = [chr(ord("A") + value) for value in range(task.n_values)]
    return build_tokenizer(
        [PAD, BOS, EOS, "?", *values, *map(str, range(task.n_operations))],
        "{{ bos_token + messages[0]['content'] + '?' }}",
    )


def compact_rows(task: CompactChain, count: int, seed: int) -> list[dict]:
    """Return problems in verl's schema."""
    tokenizer = compact_tokenizer(task)
    problems = task.draw(count, torch.Generator().manual_seed(seed))
    right_BT = task.demonstrate(problems, 0.0, torch.Generator())
    prompts, answers = (
        tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (task.prompts(problems), right_BT)
    )
    rows = []
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        message = {"role": "user", "content": prompt.removesuffix("?")}
        rows.append(rl_row(SOURCE, [message], "compact", f"{len(answer)}{answer[-1]}", {"index": index}))
    return rows


def write_inputs(task: CompactChain, folder: Path, models: Iterable[str]) -> None:
    """Write data and warm start of a task into the folder, and the tokenizer into those of the models.

    ``data/val.parquet`` is written last: with it all is complete.
    """
    if not (folder / "sft").exists():
        task.warm_start(folder / "sft")
    for model in (folder / "sft", *models):
        compact_tokenizer(task).save_pretrained(model)
    write_parquet(folder / "data" / "train.parquet", compact_rows(task, 16384, 1))
    write_parquet(folder / "data" / "val.parquet", compact_rows(task, 500, 987))
