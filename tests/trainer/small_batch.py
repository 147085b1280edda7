# SPDX-License-Identifier: Apache-2.0
"""A small batch of rollouts in a store, and the settings of a step."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import torch
from fake_queue import FakeQueue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

import prime_ext.config
from prime_ext.config.settings import PrimeSettings
from prime_ext.config.variant import keys_of
from prime_ext.trainer.prime_step import PrimeStep

NAN = float("nan")
# Two prompts; the second has lost a rollout. Lengths differ; the third response has a hole (a tool's answer).
ROLLOUTS = {
    "000000000007_0_0": (1.0, [1, 1, 1]),
    "000000000007_1_0": (0.0, [1, 1]),
    "000000000007_2_0": (0.0, [1, 0, 1, 1]),
    "000000000009_0_0": (1.0, [1]),
    "000000000009_2_0": (0.5, [1, 1]),
}
PADDING = ("pad-0_0_0", "pad-1_0_0")
FOLDER = Path(prime_ext.config.__file__).parent


@cache
def guarded():
    """The section ``prime`` with ``variant=guarded``, the gate left out."""
    prime = OmegaConf.load(FOLDER / "prime" / "prime.yaml")
    del prime["defaults"]
    prime.process = OmegaConf.merge(OmegaConf.load(FOLDER / "chain" / "plain.yaml"), prime.process)
    config = OmegaConf.create({"prime": prime})
    for key, value in {**keys_of("guarded"), "prime.process.reliability_gate": False}.items():
        if key.startswith("prime."):
            OmegaConf.update(config, key, value)
    return OmegaConf.to_container(config.prime)


def settings(**changes):
    """These, but for some keys: ``process__discount=0.5``."""
    values = deepcopy(guarded())
    for path, value in changes.items():
        section = values
        *parents, name = path.split("__")
        for parent in parents:
            section = section[parent]
        section[name] = value
    return PrimeSettings.from_mapping(values)


def filled_queue(monkeypatch):
    queue = FakeQueue().install(monkeypatch)
    for key, (accuracy, mask) in ROLLOUTS.items():
        scores = torch.zeros(len(mask))
        scores[-1] = accuracy
        queue.put(
            key,
            {"seq_len": len(mask)},
            response_mask=torch.tensor(mask),
            rm_scores=scores,
            token_level_rewards=scores - 0.25 / len(mask),
            extra_fields={"reward_extra_info": {"acc": accuracy}},
        )
    for key, mask in zip(PADDING, (0, 1), strict=True):
        # verl's padding has an empty mask and the extra fields of some real rollout; this one is worse than verl's.
        queue.put(
            key,
            {"is_padding": True, "seq_len": 128},
            response_mask=torch.tensor([mask]),
            rm_scores=torch.tensor([NAN]),
            token_level_rewards=torch.tensor([NAN]),
            extra_fields={"reward_extra_info": {"acc": 1.0}},
        )
    return queue


def batch_of(queue, keys=None):
    keys = list(keys or queue.tags["train"])
    return KVBatchMeta(partition_id="train", keys=keys, tags=[queue.tags["train"][key] for key in keys])


def loaded(queue, keys=None, scored=True, response_steps=None, greedy=None, kl_in_reward=False, **changes):
    """The step of these rollouts with these settings, and scores of the PRM."""
    step = PrimeStep.load(batch_of(queue, keys), settings(**changes), kl_in_reward, response_steps, greedy)
    if scored:
        score(step)
    return step


def score(step):
    """The same log-probabilities for a rollout wherever it stands in the batch."""
    step.reference_log_prob_BT = torch.zeros_like(step.mask_BT)
    log_prob_BT = torch.zeros_like(step.mask_BT)
    for row in range(len(step.mask_BT)):
        generator = torch.Generator().manual_seed(int(step.label_B[row] * 4) + int(step.mask_BT[row].sum()) * 10)
        log_prob_BT[row] = -torch.rand(8, generator=generator)[: step.mask_BT.shape[1]]
    step.set_scores(log_prob_BT, beta=0.05)
    step.measure_scores(log_prob_BT, "before")
