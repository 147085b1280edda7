# SPDX-License-Identifier: Apache-2.0
"""The manager's extra info in pspo_* trainers: rewards at tokens, dropped responses, metrics."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_queue import FakeQueue
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, get_trainer_cls

import prime_ext.plugin  # noqa: F401
from prime_ext.config.pspo_settings import PSPOSettings
from prime_ext.step.step_watch import BATCHES_WITHOUT_STEPS, ScoringFailed, StepWatch
from prime_ext.transcripts.record import TranscriptRecorder
from prime_ext.verl_adapter.pspo_trainer import find_scored_rows, token_rewards
from prime_ext.verl_adapter.rollout_losses import RolloutLosses, RolloutsLost

SCORER = ["step_scorer=server", "step_scorer.model_path=step_rm", "step_scorer.address=here:1"]
SIZES = [
    "actor_rollout_ref.model.path=org/model",
    "data.train_batch_size=8",
    "critic.ppo_mini_batch_size=8",
]
SIZES += ["actor_rollout_ref.actor.ppo_mini_batch_size=8"]


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("pspo_trainer_cpu", [*SCORER, *SIZES])


@pytest.fixture
def settings(composed):
    def build(**changes):
        config = composed.copy()
        for key, value in changes.items():
            OmegaConf.update(config, f"pspo.{key.replace('__', '.')}", value)
        return PSPOSettings.from_mapping(OmegaConf.to_container(config.pspo, resolve=True))

    return build


def info(paid=(0.25, 0.5), ends=(1, 3), n_tokens=4, failure=""):
    return {
        "n_steps": len(paid),
        "n_tokens": n_tokens,
        "step_ends": json.dumps(ends),
        "step_rewards": json.dumps(paid),
        "score": sum(paid),
        "reward_failure": float(bool(failure)),
        "failure_detail": failure,
    }


# ---- rewards at tokens ---------------------------------------------------------------------------


PER_STEP = {"accumulation": None, "shaping": None}
ENDS = {"accumulation__reward_position": "step_ends"}
TOKENS = {"accumulation__reward_position": "tokens"}
OWN = [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "own", "told", "expected"),
    [
        (ENDS, OWN, info(), [0.0, 0.25, 0.0, 0.5]),
        (PER_STEP, OWN, info(), [0.0, 0.25, 0.0, 0.5]),
        # Steps that share a token are both paid there.
        (ENDS, OWN, info((0.25, 0.5, 0.25), (1, 1, 3)), [0.0, 0.75, 0.0, 0.25]),
        (TOKENS, OWN, info(), [0.1875] * 4),
        (ENDS, OWN, info((), ()), [0.0] * 4),
        (ENDS, OWN, info(failure="no answer"), [0.0] * 4),
        # Tokens of tools are paid nothing.
        (ENDS, [1, 0, 1, 0], info(), [0.25, 0.0, 0.5, 0.0]),
        (ENDS, [0, 1, 1, 0], info(ends=(0, 3)), [0.0, 0.25, 0.5, 0.0]),
        (PER_STEP, [1, 1, 0, 0], info(ends=(2, 3)), [0.0, 0.75, 0.0, 0.0]),
        (TOKENS, [1, 0, 1, 0], info(), [0.375, 0.0, 0.375, 0.0]),
        (ENDS, [0, 0, 0, 0], info(), [0.0] * 4),
    ],
)
def test_rewards_are_paid_at_their_own_tokens(settings, changes, own, told, expected):
    assert token_rewards(told, torch.tensor(own), settings(**changes)).tolist() == expected


# ---- responses without a reward ------------------------------------------------------------------

UIDS = ["a", "a", "b", "b", "c"]
INFOS = [info(), info(failure="no answer in 60 s"), info(), info(), info(failure="HTTP 500")]


def test_drop_removes_unscored_responses_and_those_left_alone(settings, caplog):
    assert find_scored_rows(UIDS, INFOS, settings(), compares=False) == [0, 2, 3]
    assert find_scored_rows(UIDS, INFOS, settings(), compares=True) == [2, 3]
    assert (
        "2 of 5 responses could not be scored, the first because of: no answer in 60 s"
        in caplog.text
    )
    # A response that was alone from the start stays.
    assert find_scored_rows(
        ["a", "b", "b"], [info(), info(), info(failure="x")], settings(), compares=True
    ) == [0]


def test_zero_keeps_all_and_warns(settings, caplog):
    assert len(find_scored_rows(UIDS, INFOS, settings(on_failure="zero"), compares=True)) == 5
    assert "pspo.on_failure=zero" in caplog.text


def test_stop_and_a_batch_of_failures_end_the_run(settings):
    with pytest.raises(ScoringFailed, match="2 of 5 .* no answer in 60 s; pspo.on_failure is stop"):
        find_scored_rows(UIDS, INFOS, settings(on_failure="stop"), compares=False)
    with pytest.raises(ScoringFailed, match="no response is left to train on: 1 of 1 .* HTTP 500"):
        find_scored_rows(["c"], INFOS[4:], settings(), compares=False)


# ---- the trainers --------------------------------------------------------------------------------


@pytest.fixture
def balanced(monkeypatch):
    """Return a function that returns the batch of two prompts as verl's balancing gets it."""
    queue = FakeQueue().install(monkeypatch)
    told = {
        "p_0_0": info(),
        "p_1_0": info(failure="no answer"),
        "q_0_0": info((0.125,), (2,), n_tokens=3),
    }
    for key, one in told.items():
        fields = {
            "rm_scores": torch.zeros(one["n_tokens"]),
            "response_mask": torch.ones(one["n_tokens"]).long(),
        }
        fields["rm_scores"][-1] = one["score"]
        queue.put(
            key,
            {"response_len": one["n_tokens"]},
            **fields,
            extra_fields={"reward_extra_info": one},
        )
    monkeypatch.setattr(PPOTrainer, "_balance_batch", lambda self, batch, metrics, *_: batch)

    def run(settings, estimator="gae", arrived=tuple(told), incomplete=()):
        trainer = object.__new__(get_trainer_cls("pspo_sync"))
        trainer._losses = RolloutLosses({"train": 2}, 4)
        trainer._losses.incomplete["train"] = {*incomplete}
        trainer.pspo = settings
        trainer._watch = StepWatch("pspo.steps", "pspo", settings.steps.name)
        trainer._transcripts = TranscriptRecorder(Path(), 0, 0, "PSPO-WRS", lambda: None)
        trainer.config = SimpleNamespace(algorithm=SimpleNamespace(adv_estimator=estimator))
        tags = [queue.tags["train"][key] for key in arrived]
        metrics = {}
        batch = KVBatchMeta(
            partition_id="train", keys=list(arrived), tags=tags, extra_info={"temperature": 0.7}
        )
        return trainer._balance_batch(batch, metrics), metrics, queue

    return run


@pytest.mark.parametrize("arrived", [("p_0_0", "p_1_0", "q_0_0"), ("q_0_0", "p_1_0", "p_0_0")])
def test_a_trainers_step_keeps_the_order_of_the_data(balanced, settings, arrived):
    batch, metrics, queue = balanced(
        settings(accumulation__reward_position="step_ends"), arrived=arrived
    )
    assert batch.keys == ["p_0_0", "q_0_0"] and batch.extra_info["temperature"] == 0.7
    assert [tag["response_len"] for tag in batch.tags] == [4, 3] and "p_1_0" not in queue.tags[
        "train"
    ]
    assert queue.fields["train"]["p_0_0"]["rm_scores"].tolist() == [0.0, 0.25, 0.0, 0.5]
    assert queue.fields["train"]["q_0_0"]["rm_scores"].tolist() == [0.0, 0.0, 0.125]
    assert metrics["pspo/dropped"] == 1 and metrics["pspo/reward_failure"] == pytest.approx(1 / 3)


def test_prompts_with_lost_rollouts_leave_pspos_batch(balanced, settings):
    batch, _, queue = balanced(settings(accumulation__single_step="keep"), incomplete=["p"])
    assert batch.keys == ["q_0_0"] and list(queue.tags["train"]) == ["q_0_0"]
    with pytest.raises(RolloutsLost, match="every prompt has lost rollouts"):
        balanced(settings(), incomplete=["p", "q"], arrived=["q_0_0"])


TEXTS = ["One. Two. Three", "One step"]


@pytest.mark.parametrize(
    ("changes", "counts", "warned", "ended"),
    [
        ({"steps": "labels"}, [1, 1], True, True),
        # Half of them have two steps; one step is paid like others.
        ({"steps": "labels"}, [2, 1], False, False),
        ({"accumulation__single_step": "keep"}, [1, 1], False, False),
        ({**PER_STEP}, [1, 1], False, False),
    ],
)
def test_responses_of_one_step_cause_warnings_and_end_a_run(
    settings, monkeypatch, caplog, changes, counts, warned, ended
):
    trainer = object.__new__(get_trainer_cls("pspo_sync"))
    trainer.pspo = settings(**changes)
    trainer._watch = StepWatch("pspo.steps", "pspo", trainer.pspo.steps.name)
    trainer.tokenizer = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: ids)
    store = SimpleNamespace(fetch_rows=lambda name: {name: TEXTS})
    infos = [{"n_steps": count} for count in counts]
    for _ in range(BATCHES_WITHOUT_STEPS - 1):
        trainer._check_steps(store, infos)
    said = "0 of 2 responses have two steps with pspo.steps="
    assert caplog.text.count(said) == warned
    if "steps" in changes and warned:
        assert "two with pspo.steps=auto in 1, pspo.steps=sentences in 1; or" in caplog.text
    with pytest.raises(ScoringFailed, match=said) if ended else nullcontext():
        trainer._check_steps(store, infos)


@pytest.mark.parametrize("saved", [True, False])
def test_a_resumed_run_has_the_saved_kl_coefficient(make, tmp_path, monkeypatch, caplog, saved):
    folder = tmp_path / "global_step_3"
    for name in ("actor", "critic"):
        (folder / name).mkdir(parents=True)
        for kind in ("model", "optim", "extra_state"):
            (folder / name / f"{kind}_world_size_1_rank_0.pt").touch()
    resumed = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(folder)}
    trainer = make(**resumed, **{"algorithm.kl_ctrl.kl_coef": 0.5})
    if saved:
        trainer.kl_ctrl_in_reward.value = 0.125
        trainer._save_more(folder)
        trainer.kl_ctrl_in_reward.value = 0.5

    def verls(self):
        self.global_steps = 3

    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", verls)
    trainer._load_checkpoint()
    assert trainer.kl_ctrl_in_reward.value == (0.125 if saved else 0.5)
    assert saved != (
        "the KL coefficient starts from algorithm.kl_ctrl.kl_coef again" in caplog.text
    )
