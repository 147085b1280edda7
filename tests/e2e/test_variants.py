# SPDX-License-Identifier: Apache-2.0
"""Other choices than PRIME's own, through verl's main: losses, references, orders of update, estimators."""

import math

import e2e_harness as harness
import pytest
import torch
from scripted_server import Answer, ScriptedServer
from tiny_llama import save_llama
from transformers import AutoModelForCausalLM

from recipes.quickstart.model import build_model
from recipes.quickstart.tokenizer import build_tokenizer

pytestmark = pytest.mark.slow

VARIANTS = {
    "istar with dpo, gigpo": [
        "variant=istar",
        "prm.reference=frozen",
        "prime.outcome.estimator=gigpo",
        "prime.process.normalization=return_std",
        "prime.process.warm_up_steps=1",
    ],
    "ipvrm, policy reference": [
        "prm.loss=ipvrm",
        "+prm.loss_options.margin=3.0",
        "+prm.loss_options.time_weight=late",
        "prm.beta=10",
        "prm.reference=policy",
        "prime.outcome.estimator=reinforce_plus_plus_baseline",
        "prime.process.estimator=dr_grpo",
        "prime.whitening=null",
    ],
    "ppo on the outcome, steps": [
        "algorithm.adv_estimator=gae",
        "prime.outcome.estimator=gae",
        "prime.outcome.gae_lambda=0.95",
        "prime.process.granularity=step",
        "prime.process.credit=min_form",
        "prime.process.redistribution=uniform",
        "prime.process.normalization=outcome_relative",
        "prime.process.estimator=rloo_per_token",
        "prime.steps.splitter=delimiters",
        'prime.steps.delimiters=[";","="]',
        "critic.optim.lr=1e-3",
        "trainer.save_freq=2",
    ],
    "weibull on implicit step rewards, double forward, refreshed reference": [
        "prm.update_mode=before",
        "prm.reference_refresh_freq=1",
        "trainer.save_freq=2",
        "chain@prime.process=pspo_wrs",
        "prime.process.granularity=step",
        "prime.process.step_score=sigmoid",
        "prime.process.step_score_scale=10",
        "prime.process.normalization=none",
        "prime.steps.splitter=delimiters",
        'prime.steps.delimiters=[";","="]',
    ],
    "remax, lambda, selection, LoRA on its own base, log-probabilities in chunks": [
        "prm.model.use_fused_kernels=true",
        "prm.model.lora_rank=4",
        "prm.model.target_modules=all-linear",
        "prm.reference=base",
        "prime.outcome.estimator=remax",
        "prime.process.granularity=prefix_value",
        "prime.process.reward_lambda=0.9",
        "prime.process.discount=0",
        "prime.process.estimator=dr_grpo",
        "prime.process.normalization=prefix_std",
        "prime.process.reliability_gate=true",
        "prime.process.gate_start=1.0",
        "prime.process.gate_decay=0.9",
        "prime.selection.remove=1",
    ],
    "reverse in two epochs every second step, reference of the KL penalty": [
        "prm.loss=kto",
        "prm.update_mode=reverse",
        "prm.update_freq=2",
        "prm.epochs=2",
        "prm.reference=kl",
        "actor_rollout_ref.actor.use_kl_loss=true",
    ],
    "sign-preserving, decaying": [
        "prime.process.form=sign_preserving",
        "prime.process.clip=0.2",
        "prime.process.coefficient=0.5",
        "prime.process.decay_steps=4",
        "prm.update_mode=before",
        "trainer.save_freq=-1",
    ],
    "no reference, the policy waits for a step": [
        "prm.reference=none",
        "prm.update_mode=none",
        "trainer.critic_warmup=2",
    ],
}
# What must be among the metrics of every step.
LOGGED = {
    "weibull on implicit step rewards, double forward, refreshed reference": [
        f"prime/chain/{name}" for name in ("score", "factor", "reward")
    ],
    "istar with dpo, gigpo": ["prime/turns/mean", "prime/turns/max", "prime/turns/compared"],
    "ppo on the outcome, steps": ["critic/vf_loss", "prime/steps/mean", "prime/process/relative_factor"],
    "sign-preserving, decaying": ["prime/process/advantage_change"],
    "remax, lambda, selection, LoRA on its own base, log-probabilities in chunks": [
        "prime/remax/greedy_reward",
        "prime/remax/group_mean_instead",
        "prime/selection/consistency",
        "timing_s/greedy_baseline",
    ],
}

# Forward and backward passes of the PRM and forward passes of a reference model, over the tokens of steps 1 and 2.
PASSES = {
    "istar with dpo, gigpo": [(2, 1, 1), (2, 1, 1)],
    "ipvrm, policy reference": [(1, 1, 0), (1, 1, 0)],
    "reverse in two epochs every second step, reference of the KL penalty": [(1, 0, 0), (3, 2, 0)],
    "no reference, the policy waits for a step": [(1, 0, 0), (1, 0, 0)],
    "sign-preserving, decaying": [(2, 1, 1), (2, 1, 1)],
    "ppo on the outcome, steps": [(1, 1, 1), (1, 1, 1)],
    "weibull on implicit step rewards, double forward, refreshed reference": [(2, 1, 1), (2, 1, 1)],
    "remax, lambda, selection, LoRA on its own base, log-probabilities in chunks": [(2, 1, 0), (2, 1, 0)],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_steps(tmp_path, variant):
    harness.write_inputs(tmp_path)
    overrides = ["trainer.total_training_steps=2", "trainer.total_epochs=50", "trainer.save_freq=-1"]
    harness.run(tmp_path, tmp_path / "run", [*overrides, *VARIANTS[variant]])
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2]
    for step, passes in zip((1, 2), PASSES[variant], strict=True):
        logged = metrics[step]
        assert all(math.isfinite(logged[name]) for name in LOGGED.get(variant, []))
        waits = step == 1 and "trainer.critic_warmup=2" in VARIANTS[variant]
        assert ("actor/grad_norm" in logged) != waits
        counted = tuple(logged[f"prm/passes/{name}"] for name in ("forward", "backward", "reference"))
        assert counted == pytest.approx(passes, abs=1e-12)
        if passes[1]:
            assert math.isfinite(logged["prm/loss"]) and logged["prm/grad_norm"] > 0
        else:
            assert "prm/loss" not in logged
    # With outcome_relative, rewards that are still exactly 0 in the first step have no size to be scaled to.
    late = {"prime.process.warm_up_steps=1", "prime.process.normalization=outcome_relative"} & set(VARIANTS[variant])
    if "prime.process.form=sign_preserving" in VARIANTS[variant]:
        # The process rewards are no source of their own.
        assert "prime/process/return_std" not in metrics[2]
    else:
        assert ("prime/process/return_std" not in metrics[1]) == bool(late) and "prime/process/return_std" in metrics[2]
    fused = "prm.model.use_fused_kernels=true" in VARIANTS[variant]
    assert ("prm/fused_log_prob_difference" in metrics[1]) == fused
    if fused:
        # Chunked and plain log-probabilities were compared on the first batch.
        assert metrics[1]["prm/fused_log_prob_difference"] < 1e-4 and "prm/fused_log_prob_difference" not in metrics[2]
    if "prm.reference_refresh_freq=1" in VARIANTS[variant]:
        checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2" / "prm"
        assert (checkpoint / "reference" / "model_world_size_1_rank_0.pt").is_file()
    if variant == "ppo on the outcome, steps":
        assert (
            tmp_path / "run" / "checkpoints" / "global_step_2" / "critic" / "model_world_size_1_rank_0.pt"
        ).is_file()


def write_teacher(folder):
    """Another untrained model of the quickstart's kind."""
    build_model(build_tokenizer(), seed=1).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


def test_distillation_from_a_teacher(tmp_path):
    """One pass of a model that is never trained; it is in no checkpoint, from which the run goes on."""
    harness.write_inputs(tmp_path)
    write_teacher(tmp_path / "teacher")
    words = ["variant=on_policy_distillation", f"prm.model.path={tmp_path}/teacher", "trainer.save_freq=2"]
    for steps in (2, 3):
        harness.run(tmp_path, tmp_path / "run", [*words, f"trainer.total_training_steps={steps}"])
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2, 3]
    for logged in metrics.values():
        counted = tuple(logged[f"prm/passes/{name}"] for name in ("forward", "backward", "reference"))
        assert counted == pytest.approx((1, 0, 0), abs=1e-12)
        assert logged["actor/grad_norm"] > 0 and logged["prime/process/return_std"] > 0
        assert "prime/outcome/return_std" not in logged and "prm/loss" not in logged
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2"
    assert (checkpoint / "actor").is_dir() and not (checkpoint / "prm").exists()


SAMPLED = ["prime.process.form=sampled", "prime.process.normalization=return_std", "prime.anchor.kind=none"]
SAMPLED += ["prime.process.discount=0", "prime.process.estimator=reinforce"]


@pytest.mark.parametrize("form", [[], SAMPLED], ids=["as a distribution", "at sampled tokens"])
def test_a_self_teacher_with_the_answer_in_its_prompt(tmp_path, form):
    """The policy's average reads a hint; a run that was resumed goes on as the uninterrupted one."""
    harness.write_inputs(tmp_path)
    words = ["variant=self_distillation", "prm.inputs.template='{prompt}{gold}'", "prm.follow_policy.decay=0.5"]
    words += ["prime.process.reliability_gate=true", "prime.process.gate_start=0.9", "trainer.save_freq=2", *form]
    for name, stops in {"whole": (3,), "resumed": (2, 3)}.items():
        for steps in stops:
            harness.run(tmp_path, tmp_path / name, [*words, f"trainer.total_training_steps={steps}"])
    whole, resumed = (harness.metrics(tmp_path / name) for name in ("whole", "resumed"))
    for step, logged in whole.items():
        counted = tuple(logged[f"prm/passes/{name}"] for name in ("forward", "backward"))
        assert counted[0] > 0 and counted[1] == 0
        pull = "prime/process/return_std" if form else "prime/kl/prm"
        assert logged["prm/inputs/without_hint"] == 0.0 and logged[pull] > 0
        for key in (pull, "prm/reward_sum/mean", "prime/gate/value", "actor/grad_norm"):
            assert resumed[step][key] == pytest.approx(logged[key], rel=1e-6), (step, key)
    checkpoint = tmp_path / "resumed" / "checkpoints" / "global_step_2" / "prm"
    assert (checkpoint / "model_world_size_1_rank_0.pt").is_file()
    assert not (checkpoint / "optim_world_size_1_rank_0.pt").exists()


def test_an_implicit_prm_of_another_family(tmp_path):
    """Trained and scored on its own tokens."""
    harness.write_inputs(tmp_path)
    save_llama(tmp_path / "prm", seed=1)
    words = ["variant=guarded", f"prm.model.path={tmp_path}/prm", "prm.inputs.retokenize=true", "prm.optim.lr=1e-3"]
    harness.run(tmp_path, tmp_path / "run", [*words, "trainer.total_training_steps=2"])
    for logged in harness.metrics(tmp_path / "run").values():
        counted = [logged[f"prm/passes/{name}"] for name in ("forward", "backward", "reference")]
        assert counted[0] > 0 and counted == pytest.approx([counted[0]] * 3)
        assert logged["prm/inputs/too_long"] == logged["prm/inputs/unreadable"] == 0.0
        assert math.isfinite(logged["prm/loss"]) and logged["actor/grad_norm"] > 0
    assert logged["prime/process/return_std"] > 0


def test_steps_that_make_the_answer_likelier(tmp_path):
    """The policy is asked for the gold answer after each step, by rows of its own."""
    harness.write_inputs(tmp_path)
    words = ["variant=answer_likelihood", "prime.process.answer.template='={gold}'", "trainer.total_training_steps=2"]
    words += ["prime.steps.splitter=delimiters", 'prime.steps.delimiters=[";","="]']
    harness.run(tmp_path, tmp_path / "run", words)
    for logged in harness.metrics(tmp_path / "run").values():
        assert logged["prm/inputs/without_hint"] == logged["prm/inputs/too_long"] == 0.0
        assert 0 < logged["prime/answer_likelihood/prompt"] < 1 and 0 < logged["prime/answer_likelihood/response"] < 1
        assert logged["prm/passes/forward"] > 0 and logged["prm/passes/backward"] == 0
        assert logged["prime/process/return_std"] > 0 and logged["actor/grad_norm"] > 0


def test_a_teacher_behind_a_server(tmp_path):
    """It gives the log-probabilities of the teacher's own model, which is loaded once to compare."""
    harness.write_inputs(tmp_path)
    write_teacher(tmp_path / "teacher")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "teacher")

    def answer(prompt, payload):
        with torch.no_grad():
            log_prob_NV = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        said_N1 = log_prob_NV[:-1].gather(1, torch.tensor(prompt)[1:, None])
        return Answer("x", prompt_log_probs=[None, *said_N1[:, 0].tolist()])

    words = ["variant=on_policy_distillation", f"prm.model.path={tmp_path}/teacher", "trainer.total_training_steps=2"]
    with ScriptedServer(answer) as server:
        harness.run(tmp_path, tmp_path / "served", [*words, f"prm.server.address={server.base_url}"])
    harness.run(tmp_path, tmp_path / "here", words)
    served, here = (harness.metrics(tmp_path / name) for name in ("served", "here"))
    for step, logged in here.items():
        for key in ("prm/reward_sum/mean", "prime/process/return_std", "actor/grad_norm"):
            assert served[step][key] == pytest.approx(logged[key], rel=1e-4), (step, key)
        assert "prm/passes/forward" not in served[step]
