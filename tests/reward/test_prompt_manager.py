# SPDX-License-Identifier: Apache-2.0
"""Restatements in the reward path of training: verl's reward loop, its manager, and the configured reward function."""

import asyncio

import numpy as np
import pytest
from pspo_rows import TOKENIZER, manager, row
from verl.trainer.ppo.reward import load_reward_manager

import prime_ext.plugin  # noqa: F401
from prime_ext.config.compose import compose_config
from prime_ext.reward.compute_score import compute_score


def asked(text):
    """The messages of a prompt, as verl's agent loop hands them on."""
    return np.array([{"role": "user", "content": text}], dtype=object)


def columns(question):
    return {
        "data_source": "math",
        "reward_model": {"ground_truth": "14"},
        "extra_info": {"index": 3},
        "raw_prompt": asked(question),
    }


QUESTIONS = pytest.mark.parametrize(
    ("question", "response", "reward"),
    [
        ("Compute 2+3*4.", r"\boxed{2+3*4}", 0.0),
        ("Compute 2+3*4.", r"\boxed{14}", 1.0),
        ("Four threes and a two?", r"\boxed{2+3*4}", 1.0),
    ],
)


@QUESTIONS
def test_prime(question, response, reward):
    async def run():
        configured = load_reward_manager(compose_config("prime_trainer", []), TOKENIZER)
        return await configured.run_single(row(response, **columns(question)))

    rewarded = asyncio.run(run())
    assert rewarded["reward_score"] == rewarded["reward_extra_info"]["acc"] == reward


@QUESTIONS
def test_pspo(question, response, reward):
    rewarded = asyncio.run(manager(compute_score=compute_score).run_single(row(response, **columns(question))))
    assert rewarded["reward_extra_info"]["acc"] == reward
