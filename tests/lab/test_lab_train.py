# SPDX-License-Identifier: Apache-2.0
"""What each method trains, and what it leaves alone."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.normalization import NORMALIZATIONS
from prime_ext.config.checks import SettingsError
from recipes.lab.sample import response_logits
from recipes.lab.settings import CHOICES, DEFAULTS, LEAST, METHODS, SHARES, settings_of
from recipes.lab.train import Lab, log_probs_and_kl

SMALL = {"rollout.prompts": 6, "actor.mini_batches": 2, "prm.mini_batch_size": 8, "actor.lr": 1e-3}


def trained(task, start, method, steps=2, seed=0, **changes):
    settings = settings_of(METHODS[method], SMALL, {key.replace("__", "."): v for key, v in changes.items()})
    lab = Lab(task, settings, seed, start)
    for _ in range(steps):
        lab.step()
    return lab


def learn_and_score(lab, batch):
    with torch.no_grad():
        old_logits_BTV = response_logits(lab.policy.model, batch)
    return lab.learn_and_score(batch, old_logits_BTV)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def start_weights(task, start):
    return weights(Lab(task, settings_of(), 0, start).policy.model)


@pytest.mark.parametrize("method", METHODS)
def test_two_steps_of_every_method(task, start, start_weights, method):
    changes = {"rft__rollouts": 24} if method == "rft" else {}
    lab = trained(task, start, method, **changes)
    moved = not torch.equal(weights(lab.policy.model), start_weights)
    assert moved and bool(weights(lab.policy.model).isfinite().all())
    assert lab.examined == 2 * 6 * 4
    assert hasattr(lab, "prm") == lab.uses_prm
    assert hasattr(lab, "average") == (lab.settings["prime.anchor.coefficient"] > 0)
    if lab.uses_prm:
        assert lab.reference is None or torch.equal(weights(lab.reference), start_weights)
        frozen = lab.settings["prm.update_mode"] == "none" and lab.prm.model is not lab.policy.model
        assert torch.equal(weights(lab.prm.model), start_weights) == frozen
        learns = lab.settings["prm.bias"] and lab.settings["prm.update_mode"] != "none"
        assert (lab.prm.bias != 0) == learns


@pytest.mark.parametrize("method", ["distilled_e4", "guarded"])
def test_a_seed_gives_the_same_bits_again(task, start, method):
    first, second, other = (trained(task, start, method, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(weights(first.policy.model), weights(second.policy.model))
    assert not torch.equal(weights(first.policy.model), weights(other.policy.model))


@pytest.mark.parametrize(
    ("method", "same_as"), [("distilled", "rloo_ema"), ("distilled_e4", "rloo_ema"), ("guarded", "rloo")]
)
def test_with_a_shut_gate_the_prm_has_no_say(task, start, method, same_as):
    """A weight of 1 for the past keeps the gate where it starts: shut."""
    shut = trained(task, start, method, steps=3, prime__process__gate_decay=1)
    alone = trained(task, start, same_as, steps=3)
    assert torch.equal(weights(shut.policy.model), weights(alone.policy.model))
    assert [gate for _, _, gate, _ in shut.diagnosis] == [0.0] * 3


def test_an_open_gate_and_a_prm_that_never_learns_pull_back_to_the_start(task, start):
    frozen = trained(task, start, "frozen_prm", steps=6)
    free = trained(task, start, "rloo", steps=6)
    first = weights(frozen.reference)
    assert (weights(frozen.policy.model) - first).norm() < (weights(free.policy.model) - first).norm()


def test_interleaved_scores_are_those_before_the_rollout_was_learned_from(task, start):
    lab = Lab(task, settings_of(METHODS["paper"], SMALL, {"prm.mini_batch_size": 24}), 0, start)
    batch = lab.sample_and_judge(6)
    _, scores = learn_and_score(lab, batch)
    # One mini-batch, so that all were scored by the start; only rounding is left.
    assert scores.log_ratio_BT.abs().max() < 1e-5
    assert learn_and_score(lab, batch)[1].log_ratio_BT.abs().max() > 1e-4


def test_a_prm_of_another_size(task, start, tmp_path):
    replace(task, layers=1).warm_start(tmp_path / "small", steps=1)
    lab = trained(task, start, "distilled", prm__start=str(tmp_path / "small"))
    assert lab.prm.model.config.num_hidden_layers == 1 < lab.policy.model.config.num_hidden_layers


@pytest.mark.parametrize("mode, seen_before", [("before", True), ("after", False)])
def test_the_gate_sees_unlearned_rollouts_and_the_scores_come_when_they_should(task, start, mode, seen_before):
    lab = Lab(task, settings_of(METHODS["paper"], SMALL, {"prm.update_mode": mode}), 0, start)
    _, scores = learn_and_score(lab, lab.sample_and_judge(6))
    assert bool((scores.log_ratio_BT != 0).any()) == seen_before
    right, total, *_ = lab.diagnosis[0]
    # A PRM that equals its reference ties all pairs.
    assert total > 0 and right == total / 2


def test_layers_that_are_not_trained_and_weights_below_an_adapter_stay_as_they_are(task, start):
    last = trained(task, start, "distilled_whole", prm__trainable_layers=1).prm.model
    adapted = trained(task, start, "distilled_whole", prm__lora_rank=2).prm.model
    before = dict(Lab(task, settings_of(METHODS["distilled_whole"], SMALL), 0, start).prm.model.named_parameters())
    for name, parameter in last.named_parameters():
        assert torch.equal(parameter, before[name]) == ("layers.1." not in name), name
    base = torch.cat([p.detach().flatten() for name, p in adapted.named_parameters() if "lora" not in name])
    assert torch.equal(base, torch.cat([value.detach().flatten() for value in before.values()]))
    assert any(bool(p.any()) for name, p in adapted.named_parameters() if "lora_B" in name)


def test_a_prm_of_mixed_groups_learns_nothing_from_the_others(task, start, start_weights):
    lab = Lab(task, settings_of(METHODS["distilled"], SMALL, {"prm.groups": "mixed"}), 0, start)
    batch = lab.sample_and_judge(6)
    learn_and_score(lab, batch._replace(outcome_B=torch.ones(24)))
    assert torch.equal(weights(lab.prm.model), start_weights)
    learn_and_score(lab, batch._replace(outcome_B=torch.tensor([0.0] * 20 + [1.0, 1.0, 0.0, 0.0])))
    assert not torch.equal(weights(lab.prm.model), start_weights)


def test_the_replay_holds_the_last_rollouts_with_the_labels_that_the_prm_saw(task, start):
    lab = trained(task, start, "distilled_e4", steps=3, prm__replay=40)
    assert len(lab.replay.outcome_B) == 40
    assert set(lab.replay.group_B.tolist()[-24:]) == set(range(48, 54))
    # Shuffled labels are a permutation.
    lab = Lab(task, settings_of(METHODS["shuffled_prm"], SMALL, {"prm.replay": 24}), 0, start)
    batch = lab.sample_and_judge(6)
    learn_and_score(lab, batch)
    assert lab.replay.outcome_B.sum() == batch.outcome_B.sum()
    assert not torch.equal(lab.replay.outcome_B, batch.outcome_B)


def test_the_filter_keeps_prompts_in_the_band_and_counts_all_rollouts(task, start):
    changes = {"prime.filter.enable": "true"}
    batch = (lab := Lab(task, settings_of(SMALL, changes), 0, start)).collect()
    mean_G = batch.outcome_B.view(-1, 4).mean(1)
    assert len(mean_G) == 6 and mean_G.min() >= 0.2 and mean_G.max() <= 0.8
    assert lab.examined > 24
    # Nothing can pass this band: the step goes by, the rollouts count.
    lab = Lab(task, settings_of(SMALL, changes, {"prime.filter.lower": 0.3, "prime.filter.upper": 0.4}), 0, start)
    before = weights(lab.policy.model)
    lab.step()
    assert lab.examined == 16 * 24 and torch.equal(before, weights(lab.policy.model))


def test_the_oracle_rewards_right_results_and_punishes_wrong_ones(task, start):
    lab = Lab(task, settings_of(METHODS["oracle"], SMALL), 0, start)
    batch = lab.sample_and_judge(6)
    with torch.no_grad():
        logits_BTV = response_logits(lab.policy.model, batch)
    by_labels_BT = lab.advantages(batch, 0.0, None, logits_BTV)
    plain_BT = Lab(task, settings_of(SMALL), 0, start).advantages(batch, 0.0, None, logits_BTV)
    added_BT = (by_labels_BT - plain_BT) * batch.is_result_BT
    assert (added_BT[batch.step_label_BT > 0] >= 0).all()
    assert (added_BT[batch.is_result_BT & (batch.step_label_BT == 0)] <= 0).all()
    assert torch.equal(by_labels_BT[~batch.is_result_BT], plain_BT[~batch.is_result_BT])


def test_all_tokens_of_the_vocabulary_as_likely_ones_give_the_whole_divergence():
    logits_NV, target_NV = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
    token_N = torch.tensor([0, 1, 2, 3, 4, 0, 1])
    log_prob_N, (whole_N,) = log_probs_and_kl(logits_NV, token_N, [target_NV], None)
    likely_NK = torch.arange(5).expand(7, 5)
    same_N, (top_N,) = log_probs_and_kl(logits_NV, token_N, [target_NV], likely_NK)
    torch.testing.assert_close(log_prob_N, same_N)
    torch.testing.assert_close(whole_N, top_N, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log_probs_and_kl(logits_NV, token_N, [], None)[0], same_N)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"prm.epoch": 2}, "unknown key prm.epoch"),
        ({"prm.epochs": "two"}, "prm.epochs='two' must be a valid integer"),
        ({"prm.epochs": 0}, "prm.epochs=0"),
        ({"actor.lr": "nan"}, "actor.lr='nan' must be a finite number"),
        ({"prime.anchor.decay": 2}, "prime.anchor.decay=2 must be less than or equal to 1"),
        ({"prime.process.target": "critic"}, "prime.process.target='critic'"),
        ({"prm.bias": "maybe"}, "prm.bias='maybe'"),
        ({"prm.lora_rank": 2, "prm.trainable_layers": 1}, "prm.trainable_layers=0"),
        ({"prm.groups": "mixed", "prm.update_mode": "interleaved"}, "prm.groups=mixed"),
    ],
)
def test_bad_settings_are_one_line(values, message):
    with pytest.raises(SettingsError) as error:
        settings_of({"prm.epochs": "4", "prm.bias": "False"}, values)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_words_that_may_be_chosen_exist():
    assert set(CHOICES["prime.process.normalization"]) <= set(NORMALIZATIONS)
    assert set(CHOICES["prime.outcome.estimator"]) <= set(ESTIMATORS)
    words = {key for key, value in DEFAULTS.items() if isinstance(value, str)}
    assert words - {"prm.start"} == set(CHOICES) and {*LEAST, *SHARES} <= set(DEFAULTS)


def test_neither_verl_nor_ray_is_imported():
    code = "import sys, recipes.studies.run; print(sorted({'verl', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
