# SPDX-License-Identifier: Apache-2.0
"""Settings, responses and scorers for tests of reward managers with step scores, without Ray."""

import asyncio
import re

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from tiny_step_rm import byte_tokenizer
from verl import DataProto

from prime_ext.step_rm.scorers.protocol import StepScores
from prime_ext.verl_adapter.reward_managers import PSPORewardManager

TOKENIZER = byte_tokenizer()
EQUATION = re.compile(r"(\d+)\s*([-+*])\s*(\d+)\s*=\s*(\d+)")
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def right(step, p=0.9):
    """Return p if all equations of a step are right, (1 - p) / 2 if not, and 0.1 without any."""
    equations = EQUATION.findall(step)
    if not equations:
        return 0.1
    holds = all(OPERATIONS[sign](int(a), int(b)) == int(c) for a, sign, b, c in equations)
    return p if holds else (1 - p) / 2


class Calculator:
    """A scorer that checks the arithmetic of every step."""

    def __init__(self):
        self.asked = []

    async def score(self, chain):
        self.asked.append(chain)
        await asyncio.sleep(0)
        return StepScores(tuple(right(step) for step in chain.steps))


class Constant:
    """A scorer that gives every step the same score."""

    def __init__(self, p):
        self.p = p

    async def score(self, chain):
        return StepScores((self.p,) * len(chain.steps))


def composed(*overrides, name="pspo_trainer_cpu"):
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose(name, overrides=["actor_rollout_ref.model.path=/policy", *overrides])
    return config


_BASE = {}


def configuration(*overrides, **values):
    """Return the configuration with overrides and values of ``prime``; no model is needed."""
    if overrides not in _BASE:
        scorer = ["step_scorer.model_path=m"]
        _BASE[overrides] = composed(*scorer, *overrides)
    config = _BASE[overrides].copy()
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, f"prime.{key.replace('__', '.')}", value)
    return config


def no_verifier(**_):
    raise AssertionError("nobody asked for a verdict")


def manager(config=None, scorer=None, compute_score=no_verifier):
    return PSPORewardManager(
        config or configuration(), TOKENIZER, compute_score, score=(scorer or Calculator()).score
    )


def row(text, end=True, padding=3, **columns):
    """Return a response as the reward loop gets it; the columns are those of the data set."""
    ids = [*TOKENIZER(text)["input_ids"], *([TOKENIZER.eos_token_id] if end else [])]
    prompt = [5, 6]
    batch = {
        "prompts": torch.tensor([prompt]),
        "responses": torch.tensor([[*ids, *[0] * padding]]),
        "attention_mask": torch.tensor([[1] * (len(prompt) + len(ids)) + [0] * padding]),
    }
    given = {"uid": "7", "session_id": 2, "global_steps": 3, "data_source": "sums", **columns}
    others = {}
    for name, value in given.items():
        others[name] = np.empty(1, dtype=object)
        others[name][0] = value
    return DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=others)


def reward(text, pspo=None, **columns):
    """Return reward and extra info of one response."""
    pspo = pspo or manager()
    result = pspo.loop.run_until_complete(pspo.run_single(row(text, **columns)))
    return result["reward_score"], result["reward_extra_info"]


def numbered(*steps):
    return "\n".join(f"Step {k}: {step}" for k, step in enumerate(steps, start=1))
