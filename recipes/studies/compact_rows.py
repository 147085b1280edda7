# SPDX-License-Identifier: Apache-2.0
"""The laboratory's compact tasks through verl: their rows, tokenizer, models and verifier.

A token is one character, so that verl's text round trip changes nothing.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from prime_ext.tasks.rl_rows import rl_row
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, wrong
from recipes.lab.tasks import CompactChain
from recipes.quickstart.data import write_parquet
from recipes.quickstart.model import BOS, EOS, PAD, build_tokenizer

SOURCE = "prime_ext/compact_chain"
CHAT_TEMPLATE = "{{ bos_token + messages[0]['content'] + '?' }}"


class CompactVerifier:
    """Accept a response of the right length with the right last character."""

    async def averify(self, response: str, gold: str) -> Verdict:
        verdict = correct if f"{len(response)}{response[-1:]}" == gold else wrong
        return verdict(response[-1:], 0.0)


register_task("compact_chain", CompactVerifier)
register_source(SOURCE, "compact_chain")


def compact_tokenizer(task: CompactChain) -> PreTrainedTokenizerFast:
    """Build the tokenizer of a compact task: values are letters, operations digits."""
    values = [chr(ord("A") + value) for value in range(task.n_values)]
    return build_tokenizer([PAD, BOS, EOS, "?", *values, *map(str, range(task.n_operations))], CHAT_TEMPLATE)


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
