# SPDX-License-Identifier: Apache-2.0
"""A small batch of rollouts in a store, and the settings of a step."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from fake_queue import FakeQueue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

import prime_ext.config
from prime_ext.methods.rollouts import Rollouts, ScoredRollouts
from prime_ext.methods.settings import PrimeSettings
from prime_ext.prm.implicit_prm import FrozenPRM, ScoringPasses, TokenLogProbs
from prime_ext.step.reward_sources import reward_sources
from prime_ext.step.rollouts import load_rollouts
from prime_ext.step.step import prime_step
from prime_ext.verl_adapter.rollout_store import TransferQueueStore

NAN = float("nan")
# Two prompts; the second has lost a rollout. Lengths differ; the third response has a hole (a
# tool's answer).
ROLLOUTS = {
    "000000000007_0_0": (1.0, [1, 1, 1]),
    "000000000007_1_0": (0.0, [1, 1]),
    "000000000007_2_0": (0.0, [1, 0, 1, 1]),
    "000000000009_0_0": (1.0, [1]),
    "000000000009_2_0": (0.5, [1, 1]),
}
PADDING = ("pad-0_0_0", "pad-1_0_0")
FOLDER = Path(prime_ext.config.__file__).parent
GATE = {"decay": 0.8, "start": 0.5}


@cache
def _file(path):
    """Read a file of settings, with what it includes of the group ``chain``."""
    content = OmegaConf.load(FOLDER / path)
    chains = [
        entry["/chain@_here_"] for entry in content.pop("defaults", []) if "/chain@_here_" in entry
    ]
    return OmegaConf.to_container(
        OmegaConf.merge(
            *(OmegaConf.load(FOLDER / f"chain/{name}.yaml") for name in chains), content
        )
    )


def settings(**changes):
    """Return ``variant=paper`` with changes (``process__discount=0.5, process__form="steps"``)."""
    values = deepcopy(_file("prime/prime.yaml")) | {
        "variant": "paper",
        "anchor": None,
        "turns": None,
    }
    form = changes.pop("process__form", "tokens")
    values["process"] = None if form == "none" else deepcopy(_file(f"prime/process/{form}.yaml"))
    for name, default in SECTIONS.items():
        if any(path.startswith(f"{name}__") for path in changes):
            section, _, key = name.rpartition("__")
            (values[section] if section else values)[key] = deepcopy(default)
    for path, value in changes.items():
        section = values
        *parents, name = path.split("__")
        for parent in parents:
            section = section[parent]
        section[name] = value
    return PrimeSettings.from_mapping(OmegaConf.to_container(OmegaConf.create(values)))


# Sections that are null unless one of their keys is changed.
SECTIONS = {
    "turns": _file("prime/turns/rewards.yaml"),
    "anchor": _file("prime/anchor/ema.yaml"),
    "process__accumulation": _file("chain/pspo_wrs.yaml")["accumulation"],
}
SHAPINGS = {
    name: _file(f"chain/{name}.yaml")["shaping"] for name in ("pspo_wrs", "cn_ppo", "pspo_released")
}


def filled_queue(monkeypatch):
    queue = FakeQueue().install(monkeypatch)
    for key, (accuracy, mask) in ROLLOUTS.items():
        scores = torch.zeros(len(mask))
        scores[-1] = accuracy
        queue.put(
            key,
            {"seq_len": len(mask), "response_len": len(mask)},
            response_mask=torch.tensor(mask),
            rm_scores=scores,
            token_level_rewards=scores - 0.25 / len(mask),
            extra_fields={"reward_extra_info": {"acc": accuracy}},
        )
    for key, mask in zip(PADDING, (0, 1), strict=True):
        # verl's padding has an empty mask and the extra fields of some real rollout; this one is
        # worse than verl's.
        queue.put(
            key,
            {"is_padding": True, "seq_len": 128, "response_len": 1},
            response_mask=torch.tensor([mask]),
            rm_scores=torch.tensor([NAN]),
            token_level_rewards=torch.tensor([NAN]),
            extra_fields={"reward_extra_info": {"acc": 1.0}},
        )
    return queue


def get_batch(queue, keys=None):
    keys = list(keys or queue.tags["train"])
    return KVBatchMeta(
        partition_id="train", keys=keys, tags=[queue.tags["train"][key] for key in keys]
    )


@dataclass(frozen=True)
class Case:
    """Rollouts, what a scorer says of them, and settings: all that a step is made of."""

    rollouts: Rollouts
    scored: ScoredRollouts
    settings: PrimeSettings

    def sources(self):
        """Return the reward sources, which no gate weights."""
        return reward_sources(self.rollouts, self.scored, self.settings, 1.0, 1.0)

    def step(self, gate=1.0, **options):
        """Return the step where the gate is that much open."""
        scorer = SimpleNamespace(score_and_update=lambda _: self.scored)
        fixed = SimpleNamespace(update=lambda pairs: gate, average=gate)
        return prime_step(self.rollouts, scorer, fixed, self.settings, **options)

    def paid(self, reward_BT, noise=0.0):
        """Return the same case with other process rewards."""
        return replace(self, scored=replace(self.scored, reward_BT=reward_BT, noise=noise))


class GivenPRM(FrozenPRM):
    """One whose log-probabilities are given."""

    noise = 0.0


def scored_as(rollouts, options, log_prob_BT, reference_BT, beta=0.05):
    """Return what the implicit PRM makes of these log-probabilities."""
    prm = GivenPRM(SimpleNamespace(beta=beta, reference="frozen"), options, 8)
    scores = TokenLogProbs(log_prob_BT, reference_BT)
    return prm.compute_rewards(prm.build_batch(rollouts), ScoringPasses(scores, before=scores))


def loaded(queue, keys=None, cutter=None, kl_in_reward=False, **changes):
    """Load rollouts with settings; the scores of a rollout do not depend on its row."""
    options = settings(**changes)
    store = TransferQueueStore(get_batch(queue, keys))
    rollouts = load_rollouts(store, options, 1, kl_in_reward, cutter)
    log_prob_BT = torch.zeros_like(rollouts.mask_BT)
    for row, label in enumerate(rollouts.label_B.tolist()):
        generator = torch.Generator().manual_seed(
            int(label * 4) + int(rollouts.mask_BT[row].sum()) * 10
        )
        log_prob_BT[row] = -torch.rand(8, generator=generator)[: rollouts.mask_BT.shape[1]]
    return Case(
        rollouts, scored_as(rollouts, options, log_prob_BT, torch.zeros_like(log_prob_BT)), options
    )
