# SPDX-License-Identifier: Apache-2.0
"""A small batch of rollouts in a store, and the settings of a step."""

import torch
from fake_queue import FakeQueue
from transfer_queue import KVBatchMeta

from prime_ext.config.settings import PrimeSettings

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


def settings(**changes):
    values = {
        "variant": "guarded",
        "outcome": {"coefficient": 1.0, "discount": 1.0, "estimator": "rloo", "trace": 1.0},
        "process": {
            "coefficient": 1.0,
            "granularity": "token",
            "reward_lambda": 0.0,
            "step_score": "none",
            "step_score_scale": 1.0,
            "accumulation": {
                "mode": "none",
                "temperature": 0.1,
                "first_weight": 1.0,
                "power": 1.0,
                "single_step": "zero",
                "place": "last_token",
            },
            "shaping": {
                "name": "none",
                "weibull": {"shape": 1.5, "scale": 8.0, "constant": 10.735},
                "gaussian": {"mean": 4.0, "std": 2.0, "area": 5.0},
                "released": {
                    "growth": 0.5,
                    "peak": 4.0,
                    "slope": 0.1,
                    "steepness": 10.0,
                    "good": 0.88433,
                    "poor": 0.21159,
                    "bad": 0.2,
                },
            },
            "credit": "sum",
            "credit_temperature": 0.1,
            "credit_threshold": None,
            "redistribution": "none",
            "normalization": "batch_max",
            "relative_share": 1.0,
            "relative_decay": 0.9,
            "relative_limit": 1000.0,
            "noise_per_token": None,
            "discount": 1.0,
            "estimator": "rloo",
            "trace": 1.0,
            "baseline": "released",
            "warm_up_steps": 0,
            "decay_steps": None,
            "reliability_gate": False,
            "target": "reference",
            "form": "sampled",
            "top_k": None,
            "clip": None,
            "gate_decay": 0.8,
            "gate_start": 0.5,
        },
        "anchor": {"kind": "none", "coefficient": 1.0, "decay": 0.5, "fallback": False},
        "steps": {"splitter": "auto", "pattern": None, "delimiters": None},
        "segments": {"cuts": "steps", "threshold": 0.9, "every": 5},
        "selection": {"remove": 0, "length_penalty": 0.0, "fewest_steps": 2, "most_steps": 30},
        "filter": {
            "enable": True,
            "lower": 0.2,
            "upper": 0.8,
            "drop_truncated": False,
            "oversample": 1.0,
            "max_examined": 4.0,
            "on_exhausted": "error",
        },
        "whitening": True,
        "label_key": "acc",
        "verifier": {"on_failure": "drop", "warn_rate": 0.01},
        "poll_interval": 0.1,
    }
    for path, value in changes.items():
        section = values
        *parents, name = path.split("__")
        for parent in parents:
            section = section[parent]
        section[name] = value
    return PrimeSettings.from_mapping(values)


def filled_queue(monkeypatch):
    """A store with the rollouts and the padding."""
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
    keys = list(keys or [*ROLLOUTS, *PADDING])
    return KVBatchMeta(partition_id="train", keys=keys, tags=[queue.tags["train"][key] for key in keys])


def score(step, seed=0):
    """The same log-probabilities for a rollout wherever it stands in the batch."""
    step.reference_log_prob_BT = torch.zeros_like(step.mask_BT)
    log_prob_BT = torch.zeros_like(step.mask_BT)
    for row in range(len(step.mask_BT)):
        generator = torch.Generator().manual_seed(int(step.label_B[row] * 4) + int(step.mask_BT[row].sum()) * 10 + seed)
        log_prob_BT[row] = -torch.rand(8, generator=generator)[: step.mask_BT.shape[1]]
    metrics = {}
    step.set_scores(log_prob_BT, beta=0.05, metrics=metrics, when="before")
    return metrics
