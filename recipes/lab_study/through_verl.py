# SPDX-License-Identifier: Apache-2.0
"""The compact tasks of the laboratory through verl: what they need there, and curves in the laboratory's format.

    python -m recipes.lab_study.through_verl prepare outputs/lab/compact outputs/lab_verl/inputs
    bash recipes/lab_study/through_verl.sh distilled 0 outputs/lab_verl
    python -m recipes.lab_study.report outputs/lab_verl/compact --accuracies 0.5,0.7,0.8

A token is one character, so that verl's text round trip changes nothing.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from prime_ext.run.metrics_file import read_metrics
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.files import write_text
from prime_ext.verifiers import Verdict
from prime_ext.verifiers.sources import register_source, register_task
from prime_ext.verifiers.verdict import correct, wrong
from recipes.lab.compact_chain import CompactChain
from recipes.lab_study.tasks import TASKS
from recipes.quickstart.data import write_parquet
from recipes.quickstart.tokenizer import BOS, EOS, PAD, build_tokenizer
from recipes.study_runs import keep_run

SOURCE = "prime_ext/compact_chain"
# Behind the operations stands a question mark, or a hint: prm.inputs.template={prompt}{extra_info.answer}.
CHAT_TEMPLATE = (
    "{{ bos_token + messages[0]['content'] }}{% if messages[0]['content'][-1] in '0123456789' %}{{ '?' }}{% endif %}"
)


class CompactVerifier:
    """Right if the response has as many characters as it should and the right last one."""

    async def averify(self, response: str, gold: str) -> Verdict:
        return (correct if f"{len(response)}{response[-1:]}" == gold else wrong)(response[-1:], 0.0)


register_task("compact_chain", CompactVerifier)
register_source(SOURCE, "compact_chain")


def vocabulary(task: CompactChain) -> list[str]:
    """Characters by token id: values are letters, operations digits."""
    values = [chr(ord("A") + value) for value in range(task.n_values)]
    return [PAD, BOS, EOS, "?", *values, *map(str, range(task.n_operations))]


def rows(task: CompactChain, count: int, seed: int) -> list[dict]:
    """Problems in verl's schema."""
    problems, characters = task.draw(count, torch.Generator().manual_seed(seed)), vocabulary(task)
    prompt_BP = task.prompts(problems)
    right_BT = task.demonstrate(problems, 0.0, torch.Generator())
    found = []
    for index, (prompt, right) in enumerate(zip(prompt_BP.tolist(), right_BT.tolist(), strict=True)):
        text = "".join(characters[token] for token in prompt if token not in (task.pad, task.bos, task.question))
        answer = "".join(characters[token] for token in right if token not in (task.pad, task.eos))
        gold = f"{len(answer)}{answer[-1]}"
        more = {"index": index, "answer": answer[-1]}
        found.append(rl_row(SOURCE, [{"role": "user", "content": text}], "compact", gold, more))
    return found


def prepare(lab: Path, output: Path, teacher: Path | None, train: int = 16384, held_out: int = 500) -> None:
    """Write models, tokenizer and data of the laboratory's task that the folder ``lab`` is named by."""
    task = TASKS[lab.name]
    write_text(output / "task.txt", lab.name)
    tokenizer = build_tokenizer(vocabulary(task))
    tokenizer.chat_template = CHAT_TEMPLATE
    for name, folder in (("model", lab / "start"), ("teacher", teacher)):
        if folder is not None:
            AutoModelForCausalLM.from_pretrained(folder).save_pretrained(output / name)
            tokenizer.save_pretrained(output / name)
    write_parquet(output / "train.parquet", rows(task, train, 1))
    write_parquet(output / "val.parquet", rows(task, held_out, 987))


def to_curve(run: Path, method: str, seed: int, rollouts_per_step: int, output: Path) -> None:
    """Keep the run of the laboratory that a run of verl is the counterpart of, in the folder of its task."""
    seconds, curve = 0.0, []
    for step, values in sorted(read_metrics(run / "metrics.jsonl").items()):
        seconds += values.get("timing_s/step", 0.0)
        accuracy = [value for name, value in values.items() if name.startswith("val-core/") and "/mean@" in name]
        if accuracy:
            point = {"rollouts": step * rollouts_per_step, "seconds": round(seconds, 3), "accuracy": accuracy[0]}
            curve.append(point | dict.fromkeys(("pair_accuracy", "gate", "step_auc")))
    kept = {"task": output.name, "method": method, "seed": seed, "curve": curve}
    keep_run(output, f"{method}_seed{seed}", kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    inputs = commands.add_parser("prepare", help="model, tokenizer and data")
    inputs.add_argument("lab", type=Path)
    inputs.add_argument("output", type=Path)
    inputs.add_argument("--teacher", type=Path, help="folder of a model that recipes.lab_study.run kept")
    inputs.set_defaults(command=prepare)
    curve = commands.add_parser("curve", help="metrics of a run as a run of the laboratory")
    curve.add_argument("run", type=Path)
    curve.add_argument("method")
    curve.add_argument("seed", type=int)
    curve.add_argument("output", type=Path)
    curve.add_argument("--rollouts-per-step", type=int, default=80)
    curve.set_defaults(command=to_curve)
    arguments = vars(parser.parse_args())
    arguments.pop("command")(**arguments)


if __name__ == "__main__":
    main()
