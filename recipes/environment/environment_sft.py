# SPDX-License-Identifier: Apache-2.0
r"""Warm start: imitate the noisy demonstrators, with the loss on their moves.

python -m recipes.environment.environment_sft \
    --data outputs/environment_quickstart/data/sft.parquet \
    --output-dir outputs/environment_quickstart/sft
"""

from pathlib import Path

from recipes.command_line import read_options
from recipes.environment.number_path_task import MAX_LENGTH, build_tokenizer
from recipes.quickstart.quickstart_sft import warm_start
from recipes.quickstart.small_model import build_model


def train(data: Path, output_dir: Path, *, steps: int = 600, seed: int = 0) -> None:
    """Train a fresh model on ``data``; see :func:`recipes.quickstart.quickstart_sft.warm_start`."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed, max_position_embeddings=MAX_LENGTH)
    warm_start(model, tokenizer, data, output_dir, steps=steps, seed=seed, same_length_within=8)


if __name__ == "__main__":
    train(**read_options(__doc__, "data", "output-dir", "steps", "seed"))
