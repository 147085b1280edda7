# SPDX-License-Identifier: Apache-2.0
"""What a recipe runs on with ``SHRINK=1``: an untrained tiny model, a few rows, a small step reward model.

    python -m recipes.shrink.prepare prime outputs/eurus2_7b_prime/shrunk

Prints the overrides, one per line, that come after those of the recipe: sizes, paths and what a CPU needs. Everything
else stays as the recipe says it.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.step_rm.labels import ID2LABEL, LABEL2ID, LABELS
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import atomic_path, write_text
from recipes.pspo_wrs.step_rm_start import MAX_LENGTH
from recipes.pspo_wrs.step_rm_start import build_tokenizer as build_pair_tokenizer
from recipes.quickstart.data import rl_rows, write_parquet
from recipes.quickstart.model import build_model
from recipes.quickstart.tokenizer import build_tokenizer
from recipes.shrink.verifier import DATA_SOURCE

FAMILIES = ("prime", "pspo")
ROWS = {"train": 64, "val": 4}
WIDTH = 32
STEPS = 2
ROLLOUT_BY_TRANSFORMERS = [
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "++actor_rollout_ref.rollout.enable_sleep_mode=false",
    "actor_rollout_ref.rollout.agent.default_agent_loop=seeded_single_turn_agent",
]


def write_model(folder: Path) -> None:
    """An untrained model of the quickstart's kind."""
    tokenizer = build_tokenizer()
    with atomic_path(folder) as temporary:
        build_model(tokenizer, seed=0).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def write_rows(folder: Path) -> None:
    """Problems of the quickstart, judged by :mod:`recipes.shrink.verifier`."""
    for name, size in ROWS.items():
        rows = rl_rows(name, task.generate_problems(name, size, seed=0))
        write_parquet(folder / f"{name}.parquet", [{**row, "data_source": DATA_SOURCE} for row in rows])


def write_step_rm(folder: Path) -> None:
    """An untrained step reward model with the tokens of the policy."""
    tokenizer = build_pair_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=MAX_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=len(LABELS),
        id2label=dict(ID2LABEL),
        label2id=dict(LABEL2ID),
    )
    torch.manual_seed(0)
    with atomic_path(folder) as temporary:
        LlamaForSequenceClassification(config).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_text(
            temporary / FILE, Description(PairFormat(separator=";", max_length=MAX_LENGTH), 1.0, LABELS).to_json()
        )


def prepare(family: str, folder: Path) -> None:
    """Write what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "config.json").exists():
        write_model(folder / "model")
    if not (folder / "val.parquet").exists():
        write_rows(folder)
    if family == "pspo" and not (folder / "step_rm" / "config.json").exists():
        write_step_rm(folder / "step_rm")


def overrides(
    family: str, folder: Path, nodes: int | None = None, steps: int = STEPS, rollout: str = "transformers"
) -> list[str]:
    """What comes after the overrides of a recipe.

    Args:
        family: of the recipe.
        folder: where :func:`prepare` wrote.
        nodes: number of nodes of a Ray cluster that is running; None: the run starts Ray itself, on this machine.
        steps: of the run; after every second one it saves and validates.
        rollout: the engine that generates; ``transformers`` needs no vLLM, on a GPU neither.
    """
    model = folder / "model"
    common = [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=24",
        "data.max_response_length=12",
        "+reward.custom_reward_function.reward_kwargs.modules=[recipes.shrink.verifier]",
        f"actor_rollout_ref.model.path={model}",
        # On a GPU, flash-attn need not be there.
        "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512",
        "actor_rollout_ref.actor.fsdp_config.param_offload=false",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=false",
        *(ROLLOUT_BY_TRANSFORMERS if rollout == "transformers" else [f"actor_rollout_ref.rollout.name={rollout}"]),
        # Its weights are sent whole; means nothing without an adapter.
        "actor_rollout_ref.model.lora.merge=true",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        # Where the recipe has a critic.
        f"critic.model.path={model}",
        "critic.ppo_max_token_len_per_gpu=512",
        "critic.fsdp.param_offload=false",
        "critic.fsdp.optimizer_offload=false",
        "trainer.logger=[console,file]",
        "trainer.n_gpus_per_node=1",
        f"trainer.nnodes={nodes or 1}",
        *(["ray_kwargs.ray_init.num_cpus=null", "ray_kwargs.ray_init.num_gpus=null"] if nodes else []),
        "trainer.total_epochs=50",
        f"trainer.total_training_steps={steps}",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    ]
    if family == "pspo":
        cuts = ["pspo.steps.splitter=delimiters", 'pspo.steps.delimiters=[";","="]']
        return [*common, *cuts, f"step_scorer.model_path={folder}/step_rm"]
    engine = ["prm.engine.param_offload=false", "prm.engine.optimizer_offload=false"]
    return [*common, *engine, f"prm.model.path={model}", f"prm.reference_path={model}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, help="of a Ray cluster that is running")
    parser.add_argument("--rollout", default="transformers", help="engine that generates (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the run (default: %(default)s)")
    options = parser.parse_args()
    folder = options.folder.resolve()
    prepare(options.family, folder)
    print("\n".join(overrides(options.family, folder, options.nodes, options.steps, options.rollout)))


if __name__ == "__main__":
    main()
