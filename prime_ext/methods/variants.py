# SPDX-License-Identifier: Apache-2.0
"""The variants of PRIME in one table: which methods a run combines, and with which values.

``variant=NAME`` chooses one; an override on the command line wins over it, and the run reports the
changed keys. The files ``config/variant/*.yaml`` are written from this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A kind of run.

    Attributes:
        title: its name in texts.
        help: what it is, the head of its file.
        choices: the methods and models, by Hydra group.
        values: values by dotted key.
        adds: groups that are added to the configuration.
    """

    title: str
    help: str
    choices: Mapping[str, str]
    values: Mapping[str, Any]
    adds: Mapping[str, str] = field(default_factory=dict)


# All that PRIME's published variants have in common.
_PAPER = {
    "prime.outcome.coefficient": 1.0,
    "prime.outcome.estimator": "rloo",
    "prime.whitening": True,
}
_SCORE_STEPS = {"reward.reward_manager.name": "naive_with_step_scores"}

VARIANTS = {
    "distilled": Variant(
        "PRIME-D",
        "PRIME-D: the policy is pulled towards the PRM as a distribution, as far as the PRM is"
        " reliable, and otherwise towards a moving average of itself. It is the default, and not in"
        " the paper. docs/explanation/results/prime_d.md has the evidence.",
        {"prime/process": "kl", "prime/anchor": "fallback", "prm": "distilled"},
        _PAPER,
    ),
    "guarded": Variant(
        "PRIME with a reliability gate",
        "The paper's PRIME, guarded: a PRM that orders unseen responses no better than chance has"
        " no effect.",
        {"prime/process": "tokens"},
        {**_PAPER, "prime.process.gate": {"decay": 0.8, "start": 0.5}},
    ),
    "on_policy_distillation": Variant(
        "on-policy distillation",
        "On-policy distillation: the advantage of a token is log pi_teacher - log pi_old, and"
        " nothing else. prm.model.path names the teacher: a stronger model with the policy's"
        " tokens. With prime.outcome.coefficient=1 the verifier's outcome is added.",
        {"prime/process": "tokens", "prm": "frozen"},
        {
            "prime.outcome.coefficient": 0.0,
            "prime.process.target": "policy",
            # This is an advantage already, so it gets no return, no baseline and no normalization.
            "prime.process.discount": 0.0,
            "prime.process.estimator": "reinforce",
            "prime.process.normalization": "none",
            "prime.filter.enable": False,
            "prime.whitening": False,
            # The teacher is compared with the policy's log-probabilities, which exist already. Both
            # are taken at the temperature of the rollouts.
            "prm.reference": "policy",
        },
    ),
    "paper": Variant(
        "PRIME",
        "PRIME as in the paper (arXiv 2502.01456): outcome and process rewards, summed and then"
        " whitened.",
        {"prime/process": "tokens"},
        _PAPER,
    ),
    "pspo_wrs": Variant(
        "PSPO-WRS",
        "PSPO-WRS (arXiv 2411.11681): the geometric mean of the steps' scores times a Weibull curve"
        " over their number is the reward, without a verifier's outcome. step_scorer.model_path"
        " names the step reward model. Rollouts that have a gold answer are graded for the accuracy"
        " only. The values of PPO are those of the released code.",
        {"prime/process": "step_scorer", "chain@prime.process": "pspo_wrs"},
        {
            "prime.outcome.coefficient": 0.0,
            # PPO with a critic, as in the paper. rloo and grpo need several rollouts per prompt.
            "prime.process.estimator": "gae",
            "prime.process.credit": "sum",
            "prime.process.gate": None,
            "prime.filter.enable": False,
            "prime.whitening": True,
            "algorithm.adv_estimator": "gae",
            "algorithm.gamma": 1.0,
            "algorithm.lam": 0.95,
            # The objective of the paper is reward minus beta times KL.
            "algorithm.use_kl_in_reward": True,
            "algorithm.kl_penalty": "kl",
            "algorithm.kl_ctrl.type": "adaptive",
            "algorithm.kl_ctrl.kl_coef": 0.2,
            "algorithm.kl_ctrl.target_kl": 6.0,
            "algorithm.kl_ctrl.horizon": 10000,
            # The policy's rate: the original has one network with two heads.
            "critic.optim.lr": "${actor_rollout_ref.actor.optim.lr}",
            "critic.cliprange_value": 0.2,
            "actor_rollout_ref.actor.ppo_epochs": 4,
            "actor_rollout_ref.actor.optim.lr": 1.41e-5,
            # Estimators that compare the rollouts of a prompt need more.
            "actor_rollout_ref.rollout.n": 1,
            **_SCORE_STEPS,
            "trainer.experiment_name": "pspo_wrs",
        },
        {"step_scorer": "local"},
    ),
    "rloo": Variant(
        "RLOO",
        "Outcome rewards alone, with leave-one-out baselines: the baseline that process rewards"
        " have to beat. The section prm is not read, and no PRM is built. variant=rloo"
        " prime/anchor=ema adds the pull towards the policy's average.",
        {"prime/process": "none"},
        _PAPER,
    ),
    "step_scorer": Variant(
        "RLOO with a step reward model",
        "A published process reward model, or a server, in place of the implicit PRM:"
        " step_scorer.model_path names it. Its scores of the steps are paid in addition to the"
        " verifier's outcome, as in PURE (arXiv 2504.15275), and guarded.",
        {"prime/process": "step_scorer"},
        {**_PAPER, **_SCORE_STEPS},
        {"step_scorer": "local"},
    ),
}
