# SPDX-License-Identifier: Apache-2.0
"""Write the inputs of a recipe with ``SHRINK=1``: an untrained tiny model and generated rows.

    python -m recipes.smoke.prepare prime outputs/eurus2_7b_prime/shrunk/inputs \\
        actor_rollout_ref.model.path=PRIME-RL/Eurus-2-7B-SFT

The model is of the family of the recipe's, which its overrides name. Prints the overrides, one per
line, that come after those of the recipe: sizes, paths and what a CPU needs, from the text files
next to this one. Everything else stays as in the recipe.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedModel

from prime_ext.config.engines import text_config
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_atomically, write_json_lines
from prime_ext.verl_adapter.offline_prm.offline_settings import STEP_LOSS
from recipes.agent.calculator_task import MARKS
from recipes.agent.calculator_task import build_tokenizer as build_agent_tokenizer
from recipes.environment import number_path_task
from recipes.pspo_wrs.pspo_data import generate_problems, label_chains
from recipes.pspo_wrs.step_rm import MAX_LENGTH, pair_tokenizer
from recipes.quickstart import demonstrators
from recipes.quickstart.quickstart_data import rl_rows, sft_rows, write_parquet
from recipes.quickstart.small_model import build_model, build_tokenizer
from recipes.smoke.smoke_verifier import DATA_SOURCE
from recipes.tiny_model import QWEN, build_qwen, qwen_tokenizer

LLAMA = "llama"
MODEL_CONFIGS = Path(__file__).parents[1] / "model_configs"
# Keys that name the model of a recipe.
MODEL_KEYS = ("actor_rollout_ref.model.path", "model.path")
STEPS = 2
ROLLOUT = "actor_rollout_ref.rollout"
# By the kind of agent, "" for none: tokenizers of a Llama, and agent loops.
TOKENIZERS = {
    "": build_tokenizer,
    "tools": build_agent_tokenizer,
    "environment": number_path_task.build_tokenizer,
}
LOOPS = {
    "": "seeded_single_turn_agent",
    "tools": "seeded_tool_agent",
    "environment": "seeded_environment_agent",
}


def read_words(name: str, folder: Path, **values: str) -> list[str]:
    """Read overrides from ``NAME.txt``, with the folder and other values filled in."""
    text = (Path(__file__).parent / f"{name}.txt").read_text()
    return Template(text).substitute(folder=folder, **values).splitlines()


def find_model_family(words: Iterable[str]) -> str:
    """Return the family of the tiny model in place of the one that overrides of a recipe name.

    It is that of its config.json, here or in recipes/model_configs, and llama for all others.
    """
    named = [
        value for key, _, value in (word.partition("=") for word in words) if key in MODEL_KEYS
    ]
    kinds = [
        text_config(folder).get("model_type")
        for name in named[-1:]
        for folder in (name, MODEL_CONFIGS / Path(name).name)
    ]
    family = next((kind for kind in kinds if kind in QWEN), LLAMA)
    print(
        f"shrunk: a tiny {family} in place of {named[-1] if named else 'a model'}", file=sys.stderr
    )
    return family


def write_model(folder: Path, agent: str = "", family: str = LLAMA) -> None:
    """Write an untrained model if it is not there.

    A Llama has the tokens of the quickstart, or of the ``agent`` with ``tools`` or in an
    ``environment``. Other families read bytes, because transformers reads every tokenizer of a
    qwen2 as one of bytes.
    """
    if (folder / "config.json").exists():
        return
    if family == LLAMA:
        tokenizer = TOKENIZERS[agent]()
        model: PreTrainedModel = build_model(tokenizer, seed=0)
    else:
        tokenizer = qwen_tokenizer(family, MARKS if agent == "tools" else ())
        model = build_qwen(family, tokenizer, seed=0)
    with write_atomically(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def write_step_rm(folder: Path) -> None:
    """Write an untrained step reward model with the tokens of the policy, if it is not there."""
    if (folder / "config.json").exists():
        return
    tokenizer = pair_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=MAX_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=len(LABELS),
        id2label=dict(ID2LABEL),
        label2id=dict(LABEL2ID),
    )
    torch.manual_seed(0)
    description = Description(PairFormat(separator=";", max_length=MAX_LENGTH), 1.0, LABELS)
    with write_atomically(folder) as temporary:
        LlamaForSequenceClassification(config).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / FILE).write_text(description.to_json())


def write_rows(folder: Path, agent: str) -> None:
    """Write ``train.parquet`` and ``val.parquet`` if they are not there."""
    if (folder / "val.parquet").exists():
        return
    if agent != "environment":
        for name, size in {"train": 64, "val": 4}.items():
            rows = rl_rows(name, task.generate_problems(name, size, seed=0), DATA_SOURCE)
            write_parquet(folder / f"{name}.parquet", rows)
        return
    command = [sys.executable, "-m", "data_preprocessing.environment"]
    command += ["recipes.smoke.smoke_game:Lengths", "--size=64", "--test-size=4"]
    subprocess.run([*command, f"--output-dir={folder}"], check=True, stdout=sys.stderr)
    (folder / "test.parquet").rename(folder / "val.parquet")


def prepare(method: str, folder: Path, agent: str = "", family: str = LLAMA) -> None:
    """Write the missing inputs of a run of ``prime`` or ``pspo``."""
    write_model(folder / "model", agent, family)
    write_rows(folder, agent)
    if method == "pspo":
        write_step_rm(folder / "step_rm")


def overrides(
    method: str,
    folder: Path,
    nodes: int | None = None,
    steps: int = STEPS,
    rollout: str = "transformers",
    agent: str = "",
) -> list[str]:
    """Return the overrides that shrink a run of a recipe of ``prime`` or ``pspo``.

    They come after those of the recipe, and use the files of :func:`prepare`. After every second
    step the run saves and validates. It starts Ray itself, unless ``nodes`` is the number of nodes
    of a running Ray cluster. ``rollout`` is the engine that generates; ``transformers`` needs no
    vLLM, even on a GPU.
    """
    cluster = (
        ["ray_kwargs.ray_init.num_cpus=null", "ray_kwargs.ray_init.num_gpus=null"] if nodes else []
    )
    sizes = [f"trainer.nnodes={nodes or 1}", f"trainer.total_training_steps={steps}", *cluster]
    return [
        *read_words("rl", folder),
        *rollout_words(rollout, agent),
        *sizes,
        *read_words(method, folder),
    ]


def rollout_words(rollout: str, agent: str = "") -> list[str]:
    """Return the overrides that choose the engine that generates, and the rows of environments."""
    words = [f"{ROLLOUT}.name={rollout}"]
    if rollout == "transformers":
        words += [f"{ROLLOUT}.free_cache_engine=false", f"++{ROLLOUT}.enable_sleep_mode=false"]
        words.append(f"{ROLLOUT}.agent.default_agent_loop={LOOPS[agent]}")
    if agent == "environment":
        limits = Path(__file__).parent / "agent_loop.yaml"
        words.append(f"{ROLLOUT}.agent.agent_loop_config_path={limits}")
        words.append("data.max_response_length=96")
    return words


def prepare_offline_prm(folder: Path, words: list[str]) -> list[str]:
    """Write labeled responses, or steps if the loss in ``words`` needs them; return overrides.

    The run takes two steps.
    """
    write_model(folder / "model", family=find_model_family(words))
    losses = [word.partition("=")[2] for word in words if word.startswith("prm.loss=")]
    labels = "steps" if losses and losses[-1] == STEP_LOSS else "responses"
    for split, size in {"train": 4, "val": 2}.items():
        rows: list[dict[str, Any]] = []
        for problem in task.generate_problems(split, size, seed=0):
            right = demonstrators.solve(problem).split(";")
            other = [*right[:-1], f"\\boxed{{{(problem.answer + 1) % 10}}}"]
            for steps, wrong in ((right, -1), (other, len(right) - 1)):
                labeled_steps = {
                    "completions": steps,
                    "labels": [step != wrong for step in range(len(steps))],
                }
                labeled_response = {
                    "completions": [";".join(steps)],
                    "correctness": [int(wrong < 0)],
                }
                rows.append(
                    {
                        "prompt": problem.prompt,
                        **(labeled_steps if labels == "steps" else labeled_response),
                    }
                )
        write_json_lines(folder / f"{split}_{labels}.jsonl", rows)
    return read_words("offline_prm", folder, labels=labels)


def prepare_sft(folder: Path, words: list[str], steps: int = STEPS) -> list[str]:
    """Write model and conversations, two batches; return the overrides."""
    write_model(folder / "model", family=find_model_family(words))
    for name, size in {"train": 16, "val": 8}.items():
        # On several machines, another one may be reading it.
        if not (folder / f"{name}.parquet").exists():
            rows = sft_rows(task.generate_problems(name, size, seed=0), mean_error=0.2, seed=0)
            write_parquet(folder / f"{name}.parquet", rows)
    return read_words("sft", folder, steps=str(steps))


def prepare_step_rm(folder: Path) -> list[str]:
    """Write model and labeled chains, which the recipe converts; return overrides (two updates)."""
    write_step_rm(folder / "model")
    # About 270 steps, of which some are for validation and test.
    write_json_lines(
        folder / "chains.jsonl",
        label_chains(generate_problems("sft", 64, seed=0), "honest", seed=0),
    )
    return read_words("step_rm", folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=("prime", "pspo", "offline_prm", "sft", "step_rm"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="overrides of the recipe")
    parser.add_argument("--nodes", type=int, help="of a Ray cluster that is running")
    parser.add_argument(
        "--rollout", default="transformers", help="engine that generates (default: %(default)s)"
    )
    parser.add_argument(
        "--agent", default="", choices=[*LOOPS], help="what the recipe's agent does"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="of the run (default: %(default)s)"
    )
    options = parser.parse_args()
    method = options.method
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if method == "offline_prm":
        words = prepare_offline_prm(folder, options.words)
    elif method == "sft":
        words = prepare_sft(folder, options.words, options.steps)
    elif method == "step_rm":
        words = prepare_step_rm(folder)
    else:
        prepare(method, folder, options.agent, find_model_family(options.words))
        words = overrides(
            method, folder, options.nodes, options.steps, options.rollout, options.agent
        )
    print("\n".join(words))


if __name__ == "__main__":
    main()
