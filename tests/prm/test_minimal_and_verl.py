# SPDX-License-Identifier: Apache-2.0
"""A step of examples/minimal_prime.py equals the trainer's: gate, advantages and both models."""

import prm_rank as base  # isort: skip

import sys
from pathlib import Path

import pytest
import test_policy_loss
import torch
from gloo_ranks import finish, run_ranks
from transfer_queue import KVBatchMeta

from examples.minimal_prime import Rollouts, Trainer, build_settings
from prime_ext.algorithms.advantage import combine_sources
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.step import rollouts as of_trainer
from prime_ext.step.step import prime_step
from prime_ext.verl_adapter.rollout_store import TransferQueueStore
from prime_ext.verl_adapter.worker_engines import register_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
from small_batch import scored_as  # noqa: E402
from small_batch import settings as prime_settings  # noqa: E402

PROGRAM = Path(__file__)

PAD = 0
LR = 1e-2
PRM_LR = 2e-2
BETA = 0.5
# Smooth where a gradient is rounding noise: AdamW would turn its sign into a full step.
EPS = 1e-3
OPTIMISER = {
    "prm.beta": BETA,
    "prm.optim.betas": [0.9, 0.99],
    "prm.optim.lr_scheduler_type": "constant",
    "prm.optim.lr_warmup_steps": 0,
}
OF_PRM = OPTIMISER | {
    "prm.optim.lr": PRM_LR,
    "prm.optim.weight_decay": 0.0,
    "prm.optim.clip_grad": 10.0,
}
OF_POLICY = OPTIMISER | {
    "prm.optim.lr": LR,
    "prm.optim.weight_decay": 0.01,
    "prm.optim.clip_grad": 1.0,
}
GATE = 0.9
DISTILLED = {"process__form": "kl", "process__gate": {"decay": 0.8, "start": 0.5}}
DISTILLED |= {"anchor__fallback": True}
# Methods of examples/minimal_prime.py, in the trainer's keys.
VARIANTS = {
    "rloo": {"process__form": "none"},
    "paper": {},
    "guarded": {"process__gate": {"decay": 0.8, "start": 0.5}},
    "distilled": DISTILLED,
}


def rollouts():
    valid = [r for r in base.build_rollouts() if not r["padding"]]
    for row, rollout in enumerate(valid):
        rollout["mask"] = torch.ones_like(rollout["mask"])
        rollout["label"] = float(row % 3 == 0)
    return valid


def as_batch(found):
    """Return the same rollouts as examples/minimal_prime.py has them."""
    width, limit = (max(len(r[name]) for r in found) for name in ("prompt", "response"))
    prompt_BP = torch.full((len(found), width), PAD)
    response_BT = torch.full((len(found), limit), PAD)
    mask_BT = torch.zeros(response_BT.shape, dtype=torch.bool)
    for row, r in enumerate(found):
        prompt_BP[row, width - len(r["prompt"]) :] = r["prompt"]
        response_BT[row, : len(r["response"])] = r["response"]
        mask_BT[row, : len(r["response"])] = True
    label_B = torch.tensor([r["label"] for r in found])
    return Rollouts(
        prompt_BP, prompt_BP != PAD, response_BT, mask_BT, label_B, torch.arange(len(found)) // 2
    )


def in_one_file(method, model_path, batch):
    changes = {
        "actor.lr": LR,
        "actor.lr_warmup_steps": 1,
        "actor.mini_batches": 1,
        "prm.lr": PRM_LR,
        "prm.beta": BETA,
    }
    changes |= {"prm.lr_warmup_steps": 1, "prm.mini_batch_size": len(batch.outcome_B)}
    trainer = Trainer(None, build_settings(method, changes), 0, model_path)
    trainer.gate = ReliabilityGate(0.8, GATE)
    for learner in filter(None, (trainer.policy, trainer.prm)):
        learner.optimizer.param_groups[0]["eps"] = EPS
    with torch.no_grad():
        old_BT = batch.log_probs(batch.logits(trainer.policy.model))
    batch = batch._replace(
        old_BT=old_BT, reference_BT=old_BT
    )  # all models start from the same weights
    gate, scores = trainer.learn_and_score(batch) if trainer.prm else (0.0, None)
    sources = trainer.reward_sources(batch, gate, scores)
    advantage_BT = combine_sources(sources, batch.mask_BT, batch.group_B).advantage_BT
    trainer.update_policy(batch, advantage_BT, trainer.kl_targets(batch, gate, scores))
    result = {
        "gate": gate,
        "advantages": advantage_BT,
        "policy": dict(trainer.policy.model.named_parameters()),
    }
    if trainer.prm:
        result |= {
            "prm": dict(trainer.prm.model.named_parameters()),
            "bias": float(trainer.prm.bias),
        }
    return result


class OnRank:
    """The implicit PRM as a scorer, on the worker of this rank, and what has become of it."""

    def __init__(self, method, settings, model_path, found, reference):
        self.settings = settings
        self.found = found
        self.reference = reference
        self.of_paper = method in ("paper", "guarded")
        more = {
            "prm.bias_lr": None if self.of_paper else 0.05,
            "prm.trainable_layers": None if self.of_paper else 0.33,
        }
        self.prm = base.Prm(model_path, OF_PRM | more, mini_batch_size=len(found) // 2)

    def score_and_update(self, rollouts):
        if not self.of_paper:
            self.prm.worker.start_bias(float(rollouts.label_B.mean()))
        _, first = self.prm.update_and_score(self.found, self.reference)
        return scored_as(rollouts, self.settings, padded(first), padded(self.reference), BETA)


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def on_verl(method, keys, model_path, found, batch):
    """Run a step as the trainer does: PRM, gate, advantages, update of the policy."""
    settings = prime_settings(**keys)
    mask_BT = batch.mask_BT.float()
    reward_BT = torch.zeros_like(mask_BT)
    reward_BT[torch.arange(len(found)), mask_BT.sum(-1).long() - 1] = batch.outcome_B
    trained = test_policy_loss.policy(model_path, OF_POLICY, len(found) // 2)
    old_log_probs = trained.score(found)
    nobody = TransferQueueStore(KVBatchMeta())
    rollouts = of_trainer.Rollouts(nobody, [], mask_BT, reward_BT, batch.outcome_B, batch.group_B)
    # All models start from the same weights.
    scorer = (
        OnRank(method, settings, model_path, found, old_log_probs) if settings.process else None
    )
    step = prime_step(
        rollouts, scorer, ReliabilityGate(0.8, GATE) if settings.gate else None, settings
    )
    result = {
        "gate": step.metrics.get("prime/gate/value", 1.0 if scorer else 0.0),
        "advantages": step.advantage_BT,
    }
    if scorer:
        result |= {"prm": scorer.prm.weights(), "bias": scorer.prm.worker.bias_value() or 0.0}
    if settings.distils:
        average = base.Prm(model_path, role="average")
        register_engine("average", average.worker.engine)
        register_engine("prm", scorer.prm.worker.engine)
    advantages = [step.advantage_BT[row, : len(r["response"])] for row, r in enumerate(found)]
    test_policy_loss.update(trained, found, old_log_probs, step.kl_coefficients, advantages)
    return result | {"policy": trained.weights()}


def main(model_path, work_dir):
    rows = rollouts()
    batch = as_batch(rows)
    results = {}
    for method, keys in VARIANTS.items():
        minimal = in_one_file(method, model_path, batch)
        results[method] = (minimal, on_verl(method, keys, model_path, rows, batch))
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(model_path, tmp_path_factory):
    return run_ranks(PROGRAM, [model_path], {1: tmp_path_factory.mktemp("rank")})[1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_batch_through_both(results, variant):
    minimal, verl = results[variant]
    assert minimal["gate"] == pytest.approx(verl["gate"], abs=1e-6)
    torch.testing.assert_close(minimal["advantages"], verl["advantages"], atol=1e-5, rtol=0)
    for model in ("prm", "policy"):
        assert (model in minimal) == (model in verl)
        for name, weight in minimal.get(model, {}).items():
            torch.testing.assert_close(
                weight, verl[model][name], atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert minimal.get("bias", 0.0) == pytest.approx(verl.get("bias", 0.0), abs=1e-5)
