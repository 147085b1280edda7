# SPDX-License-Identifier: Apache-2.0
"""Episodes of an environment through verl: rewards of turns, the implicit PRM, resumption."""

import os
from pathlib import Path

import e2e_harness as harness
import pytest

from data_preprocessing import environment as environment_rows
from recipes.environment.number_path_task import MAX_LENGTH, build_tokenizer
from recipes.quickstart.small_model import build_model

pytestmark = pytest.mark.slow

# An untrained policy writes digits now and then, which pays here.
NAME = "broken_games:Counting:turns=3"
FOLDER = Path(__file__).parents[1] / "environments"
OVERRIDES = [
    "variant=paper",
    "prime/process=steps",
    "prime.process.granularity=turn",
    "prime.process.estimator=turn_rloo",
    "prime/turns=rewards",
    "prime.turns.field=turn_scores",
    "prime.filter.enable=false",
    "actor_rollout_ref.rollout.agent.default_agent_loop=seeded_environment_agent",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.dtype=float64",
    "actor_rollout_ref.rollout.max_model_len=160",
    "data.max_prompt_length=32",
    "data.max_response_length=96",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
    # Its patterns match no data source here.
    "modules=[]",
]


def train(inputs, output, steps, workers=1):
    words = [
        f"trainer.total_training_steps={steps}",
        f"actor_rollout_ref.rollout.agent.num_workers={workers}",
    ]
    harness.run(inputs, output, [*OVERRIDES, *words])
    return harness.metrics(output)


def test_episodes_are_equal_with_more_workers_and_after_resumption(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, 0, max_position_embeddings=MAX_LENGTH)
    for saved in (tokenizer, model):
        saved.save_pretrained(tmp_path / "model")
    words = [NAME, "--size", "16", "--test-size", "4", "--output-dir", str(tmp_path)]
    assert environment_rows.main(words) == 0
    (tmp_path / "test.parquet").rename(tmp_path / "val.parquet")

    alone = train(tmp_path, tmp_path / "alone", steps=2)
    train(tmp_path, tmp_path / "stopped", steps=1, workers=3)
    resumed = train(tmp_path, tmp_path / "stopped", steps=2, workers=2)
    assert sorted(alone) == sorted(resumed) == [1, 2]
    for step, logged in alone.items():
        assert logged["agent/environment/turns"] > 0 and logged["actor/grad_norm"] > 0
        assert logged["agent/environment/failed"] == 0 and logged["prm/grad_norm"] > 0
        # The one that stopped was validated after its last step, too.
        names = [
            name
            for name in logged
            if not any(part in name for part in (*harness.NOT_REPEATABLE, "val-"))
        ]
        assert {name: logged[name] for name in names} == {
            name: resumed[step][name] for name in names
        }
    assert f"val-core/environment/{NAME}/acc/mean@1" in alone[2]
