# SPDX-License-Identifier: Apache-2.0
"""GPU scripts with SHRINK=1: two steps on the CPU for each kind of training, and what they leave.

test_recipes.py composes every script; tests/e2e/test_two_nodes.py runs one of PRIME's.
"""

import math
import shutil

import pytest
from metric_names import undocumented
from recipe_calls import run_shrunk
from safetensors import safe_open

from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.transcripts.files import find_folder, read_step
from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow


def test_an_offline_prm_starts_at_its_reference(tmp_path):
    folder = run_shrunk(tmp_path, "prime/run_eurusprm-stage2_fsdp.sh")
    metrics = read_metrics(folder / "metrics.jsonl")
    assert all(
        math.isfinite(metrics[step][name])
        for step in (1, 2)
        for name in ("train/loss", "train/grad_norm")
    )
    assert any(name.startswith("val") for name in metrics[2])
    assert 2 in find_complete_steps(folder / "checkpoints")
    # The loss is log 2 there, whatever its kind.
    assert metrics[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-3)
    assert read_json(folder / "hf" / "prime_ext_prm.json")["loss"] == "step_ce"
    with safe_open(folder / "hf" / "model.safetensors", "pt") as weights:
        assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())


@pytest.mark.parametrize(
    ("model", "family"), [("Qwen/Qwen3-0.6B", "qwen3"), ("Qwen/Qwen3-30B-A3B", "qwen3_moe")]
)
def test_qwen3_with_and_without_experts_trains(tmp_path, model, family):
    folder = run_shrunk(tmp_path, "prime_gsm8k.sh", model)
    assert read_json(folder / "inputs" / "model" / "config.json")["model_type"] == family
    metrics = read_metrics(folder / "metrics.jsonl")
    for step in (1, 2):
        assert metrics[step]["actor/grad_norm"] > 0 and metrics[step]["prm/grad_norm"] > 0
        # After the first step, of weights that the rollout server was sent.
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-5
    assert find_complete_steps(folder / "checkpoints") == [2]
    # The recipe's choice reached the rollouts.
    prompts = [row["prompt"] for row in read_step(find_folder(folder), 1)]
    assert prompts and all(prompt.endswith("<think>\n\n</think>\n\n") for prompt in prompts)


def test_pspo_with_a_critic_is_paid_at_step_ends(tmp_path):
    """The paper's settings, except that rewards are paid at step ends."""
    words = [
        "no/model",
        "no/step_rm",
        "no.parquet",
        "no.parquet",
        "prime.process.accumulation.reward_position=step_ends",
    ]
    folder = run_shrunk(tmp_path, "pspo_wrs/run_abel-7b_ppo_fsdp.sh", *words)
    metrics = read_metrics(folder / "metrics.jsonl")
    for logged in (metrics[1], metrics[2]):
        names = ("prime/steps/mean", "prm/step_score", "prime/chain/score", "prime/chain/factor")
        assert all(
            math.isfinite(logged[name]) for name in (*names, "critic/vf_loss", "actor/pg_loss")
        )
        assert "verifier/not_scored" not in logged
        # What is paid at step ends adds up to the chain's reward.
        assert logged["prm/reward_sum/mean"] == pytest.approx(
            logged["prime/chain/reward"], abs=1e-5
        )
        assert logged["actor/grad_norm"] > 0 and logged["critic/grad_norm"] > 0
        assert undocumented(logged) == []
    # verl's own way: means of the manager's numbers over the validation set.
    validation = {
        name.split("/")[-2] for name in metrics[2] if name.startswith(("val-core", "val-aux"))
    }
    assert {"acc", "reward", "n_steps", "step_score", "reward_failure"} <= validation
    assert 2 in find_complete_steps(folder / "checkpoints")
    assert list((folder / "checkpoints" / "global_step_2" / "critic").glob("model_world_size_1_*"))


def test_sft_resumed_at_an_epochs_end_matches_an_uninterrupted_run(tmp_path, monkeypatch):
    """Two steps are an epoch here, after which a run saves."""
    monkeypatch.setenv("SHRINK_STEPS", "4")
    whole = run_sft(tmp_path)
    assert sorted(whole) == [1, 2, 3, 4]
    checkpoints = tmp_path / "shrunk" / "checkpoints"
    shutil.rmtree(checkpoints / "global_step_4")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    resumed = run_sft(tmp_path)
    assert sorted(resumed) == [3, 4] and (checkpoints / "global_step_4").is_dir()
    names = [f"train/{name}" for name in ("loss", "grad_norm", "lr", "global_tokens")]
    for step in (3, 4):
        assert [resumed[step][name] for name in names] == pytest.approx(
            [whole[step][name] for name in names], rel=1e-5
        )
    assert resumed[4]["val/loss"] == pytest.approx(whole[4]["val/loss"], rel=1e-5)


def run_sft(folder):
    """Run verl's SFT trainer, or continue; return what it logged, by step."""
    shrunk = run_shrunk(folder, "prime/run_eurus2-7b_sft_fsdp.sh", "no.parquet")
    (path,) = shrunk.glob("metrics_*.jsonl")
    metrics = read_metrics(path)
    path.unlink()
    return metrics


def test_step_reward_model(tmp_path):
    folder = run_shrunk(tmp_path, "pspo_wrs/run_bert-large_step-rm_ddp.sh", "no/model", "no.jsonl")
    results = read_json(folder / "results.json")
    assert results["steps"] == 2 and 0 <= results["validation"]["accuracy"] <= 1
    assert (folder / "model" / "config.json").is_file() and (folder / "steps.parquet").is_file()


def test_an_agent_plays_with_the_limits_of_a_file(tmp_path):
    folder = run_shrunk(tmp_path, "environment/run_qwen3-4b_games_fsdp.sh")
    metrics = read_metrics(folder / "metrics.jsonl")
    for step in (1, 2):
        assert metrics[step]["agent/environment/turns"] == 2
        assert metrics[step]["agent/environment/failed"] == 0
        assert metrics[step]["actor/grad_norm"] > 0 and metrics[step]["prm/grad_norm"] > 0
        # Two turns of at most 8 tokens, and a reply between them.
        assert metrics[step]["response_length/max"] < 64
    assert find_complete_steps(folder / "checkpoints") == [2]
