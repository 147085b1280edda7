# SPDX-License-Identifier: Apache-2.0
"""Which runs are compared: suites of variants on one task, from one start.

A variant is a list of verl overrides on top of ``recipes/quickstart/train.sh`` and :data:`PLAIN`, which are PRIME in
the paper's form: single forward, cross-entropy, frozen reference, leave-one-out advantages of both sources, no gate.
"""

from dataclasses import dataclass, field

PLAIN = ("variant=paper",)
PAPER_KNOBS = {"LR": "2e-4", "PRM_LR": "1e-3", "BETA": "0.2"}
OUTCOME_ONLY = ("prime.process.coefficient=0", "prm.enable=false")


@dataclass(frozen=True)
class Variant:
    """One column of the comparison.

    Attributes:
        label: in tables and plots.
        overrides: of the configuration; ``{offline_prm}`` stands for the folder of the PRM that was trained offline.
    """

    label: str
    overrides: tuple[str, ...] = ()

    @property
    def needs_offline_prm(self) -> bool:
        return any("{offline_prm}" in override for override in self.overrides)


@dataclass(frozen=True)
class Suite:
    """Variants on one task.

    Attributes:
        title: what the suite asks.
        baseline: name of the variant that the others are compared with, seed by seed.
        variants: by name.
        chain_lengths: operations per problem of the task, see ``prime_ext.tasks.last_digit_chain``.
        mean_error: of the demonstrators of the warm start.
        max_prompt_length, max_response_length: in tokens, which are characters here.
        steps: policy updates.
        every: steps between evaluations.
        knobs: of ``train.sh``.
        overrides: of the configuration, for every variant.
    """

    title: str
    baseline: str
    variants: dict[str, Variant]
    chain_lengths: tuple[int, ...] = (4, 5, 6, 7)
    mean_error: float = 0.25
    max_prompt_length: int = 24
    max_response_length: int = 48
    steps: int = 40
    every: int = 20
    knobs: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


CHOICES = Suite(
    title="Choices around PRIME on the quickstart's task: PRM, order of updates, loss, estimators",
    baseline="prime",
    variants={
        "prime": Variant("PRIME: interleaved, ce, rloo"),
        "outcome": Variant("no process rewards, rloo", OUTCOME_ONLY),
        "offline": Variant(
            "PRM trained offline, then fixed",
            ("prm.update_mode=none", "prm.model.path={offline_prm}", "prm.reference_path={start}"),
        ),
        "after": Variant("update after scoring", ("prm.update_mode=after",)),
        "before": Variant("update before scoring (double forward)", ("prm.update_mode=before",)),
        "dpo": Variant("PRM loss dpo, update after", ("prm.loss=dpo", "prm.update_mode=after")),
        "ipvrm": Variant("PRM loss ipvrm, beta 10", ("prm.loss=ipvrm", "prm.beta=10")),
        "grpo": Variant("grpo, both sources", ("prime.outcome.estimator=grpo", "prime.process.estimator=grpo")),
        "grpo_outcome": Variant("grpo, no process rewards", (*OUTCOME_ONLY, "prime.outcome.estimator=grpo")),
        "reinforce": Variant(
            "reinforce, both sources", ("prime.outcome.estimator=reinforce", "prime.process.estimator=reinforce")
        ),
        "reinforce_outcome": Variant(
            "reinforce, no process rewards", (*OUTCOME_ONLY, "prime.outcome.estimator=reinforce")
        ),
        "prm_value": Variant(
            "PRM as value function", ("prime.outcome.estimator=prm_value", "prime.process.coefficient=0")
        ),
    },
    steps=24,
    every=24,
    # The policy moves from the start: 24 steps are few.
    knobs={"LR_WARMUP": "5"},
    overrides=PLAIN,
)

LONG_CHAINS = Suite(
    title="Long chains and a sparse outcome: does PRIME help, and which guard makes it safe?",
    baseline="outcome",
    variants={
        "outcome": Variant("no process rewards, rloo", OUTCOME_ONLY),
        "prime": Variant("PRIME, no guard"),
        "gate": Variant("reliability gate", ("prime.process.reliability_gate=true",)),
        "warm_up": Variant("process rewards count from step 10", ("prime.process.warm_up_steps=10",)),
        "policy_waits": Variant("policy moves from step 10", ("trainer.critic_warmup=10",)),
        "outcome_relative": Variant(
            "running scale relative to the outcome", ("prime.process.normalization=outcome_relative",)
        ),
        "redistribution": Variant("rewards shifted to sum to 0", ("prime.process.redistribution=uniform",)),
        "gate_redistribution": Variant(
            "gate and redistribution", ("prime.process.reliability_gate=true", "prime.process.redistribution=uniform")
        ),
    },
    chain_lengths=(8, 9, 10, 11, 12),
    mean_error=0.15,
    max_prompt_length=36,
    max_response_length=90,
    steps=60,
    every=30,
    # At a policy rate of 5e-4 (one seed) outcome rewards alone ended at 46 %, and with a gate that never let process
    # rewards beyond 9 % of their spread at 22 %; at a PRM rate of 1e-3 the PRM's loss rose above ln 2. Both rates were
    # lowered before the runs that count.
    knobs={"LR": "2e-4", "PRM_LR": "3e-4"},
    # A policy that has collapsed to chance fills no batch; its run goes on with what there is.
    overrides=(*PLAIN, "prime.filter.on_exhausted=partial", "prime.filter.max_examined=8"),
)

SUITES = {"choices": CHOICES, "long_chains": LONG_CHAINS}
