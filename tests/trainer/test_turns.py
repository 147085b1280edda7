# SPDX-License-Identifier: Apache-2.0
"""Trajectories with tools in a step: tools' tokens change nothing, and turns are paid."""

import math
import random
from dataclasses import replace
from typing import get_args

import pytest
import torch
from fake_queue import FakeQueue
from hypothesis import given
from hypothesis import strategies as st
from small_batch import NAN, SHAPINGS, Case, get_batch, scored_as, settings

from prime_ext.algorithms.accumulation import MODES
from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.process_shaping import credit_rewards
from prime_ext.config.checks import SettingsError
from prime_ext.names import Credit, RewardPosition, StepScoreName, list_estimators
from prime_ext.step.rollouts import load_rollouts
from prime_ext.step_rm.response_cut import ResponseCutter
from prime_ext.verl_adapter.rollout_store import TransferQueueStore
from recipes.quickstart.small_model import build_tokenizer

TOKENIZER = build_tokenizer()
PROMPTS = {"0001": 3, "0002": 2, "0003": 1}
KEYS = [f"{uid}_{session}_0" for uid, n in PROMPTS.items() for session in range(n)]


MASKS = [[1, 1, 0, 1, 0, 1], [1, 0, 1], [1, 1], [1, 0], [0, 1, 0, 0], [1]]
REWARDS = {
    KEYS[0]: [0.5, -1.0],
    KEYS[1]: [1.0, 2.0],
    KEYS[2]: [],
    KEYS[3]: [3.0],
    KEYS[4]: [0.25],
    KEYS[5]: [],
}


def own_masks(rng):
    """Draw masks of up to eight tokens, tools' and the policy's; one has none of the policy's."""
    masks = [[int(rng.random() < 0.6) for _ in range(rng.randint(1, 8))] for _ in KEYS]
    masks[rng.randrange(3)] = [0, 0, 0]
    return masks


def get_turns(mask):
    return sum(own and not before for before, own in zip([0, *mask], mask, strict=False))


def stored(monkeypatch, masks, seed=0, garbage=(NAN,), rewards=None):
    """Return a store with these trajectories; tokens that are not the policy's hold garbage."""
    queue = FakeQueue().install(monkeypatch)
    rng = random.Random(seed)
    junk = random.Random(str(garbage))
    for key, mask in zip([*KEYS, "pad-0_0_0"], [*masks, [0]], strict=True):
        n = len(mask)
        accuracy = rng.choice([0.0, 1.0])
        values = {
            name: [-rng.random() for _ in mask]
            for name in ("values", "old_log_probs", "prm", "reference")
        }
        for listed in values.values():
            listed[:] = [
                one if own else junk.choice(garbage) for one, own in zip(listed, mask, strict=True)
            ]
        listed = (
            rewards.get(key)
            if rewards is not None
            else [rng.random() for _ in range(get_turns(mask))]
        )
        padding = {"is_padding": True} if key.startswith("pad") else {}
        queue.put(
            key,
            {"seq_len": n + 1, "response_len": n, **padding},
            **{name: torch.tensor(listed) for name, listed in values.items()},
            response_mask=torch.tensor(mask),
            loss_mask=torch.tensor(mask),
            prompts=torch.tensor([7]),
            responses=torch.tensor([rng.randrange(2) for _ in mask]),
            # The outcome stands at the last token, whosever it is.
            rm_scores=torch.tensor([0.0] * (n - 1) + [accuracy]),
            extra_fields={
                "reward_extra_info": {"acc": accuracy},
                "tool_rewards": listed,
                "turn_scores": [],
            },
        )
    return queue, get_batch(queue)


def loaded(queue, batch, options):
    cutter = ResponseCutter(options.steps, TOKENIZER) if options.needs.steps else None
    store = TransferQueueStore(batch)
    rollouts = load_rollouts(store, options, cutter=cutter)
    scored = scored_as(rollouts, options, *store.fetch("prm", "reference").values())
    return Case(rollouts, replace(scored, noise=1e-6), options)


def choose_estimator(rng, name, source):
    """Return the estimator of that name if it serves the source, else any that does."""
    return name if name in list_estimators(source) else rng.choice(list_estimators(source))


def any_settings(rng, name):
    """Return some configuration with the estimator of that name, wherever it may stand."""
    while True:
        changes = {
            "process__form": rng.choice(["tokens", "steps", "steps"]),
            "outcome__estimator": choose_estimator(rng, name, "outcome"),
            "process__estimator": choose_estimator(rng, name, "process"),
            "process__normalization": rng.choice(("batch_max", "none")),
            "process__discount": rng.choice([0.0, 0.9, 1.0]),
            "steps": {"delimiters": [1]},
        }
        if name in list_estimators("turns") or rng.random() < 0.5:
            changes["turns__estimator"] = name if name in list_estimators("turns") else "turn_rloo"
            changes["turns__coefficient"] = 0.7
        if changes["process__form"] == "tokens":
            changes["process__target"] = rng.choice(["reference", "policy"])
        else:
            changes["process__granularity"] = rng.choice(["step", "turn", "response"])
            changes["process__credit"] = rng.choice(get_args(Credit))
            changes["process__step_score"] = rng.choice(get_args(StepScoreName))
            changes["process__shaping"] = rng.choice([None, *SHAPINGS.values()])
            if rng.random() < 0.5:
                changes["process__accumulation__mode"] = rng.choice(list(MODES))
                changes["process__accumulation__reward_position"] = rng.choice(
                    get_args(RewardPosition)
                )
        try:
            return settings(**changes)
        except SettingsError:
            continue


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(seed=st.integers(0, 2**32 - 1))
def test_tokens_of_tools_reach_no_reward_or_advantage(name, seed):
    rng = random.Random(seed)
    masks = own_masks(rng)
    options = any_settings(rng, name)
    results = []
    for garbage in ((NAN,), (0.0, -3.0, math.inf)):
        with pytest.MonkeyPatch.context() as monkeypatch:
            case = loaded(*stored(monkeypatch, masks, seed, garbage), options)
        outside_BT = ~case.rollouts.mask_BT.bool()
        reward_BT = case.scored.reward_BT
        assert not reward_BT[outside_BT].any() and not case.rollouts.reward_BT[outside_BT].any()
        for source in case.sources().by_name.values():
            assert (
                not source.kept_reward()[outside_BT].any() and not source.mask_BT[outside_BT].any()
            )
        result = case.step()
        assert not result.advantage_BT[outside_BT].any() and not result.return_BT[outside_BT].any()
        assert result.advantage_BT.isfinite().all()
        results.append((reward_BT, result.advantage_BT, result.return_BT))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("credit", get_args(Credit))
def test_turns_are_the_steps_of_the_granularity_turn(monkeypatch, credit):
    changes = {"process__form": "steps", "process__granularity": "turn", "process__credit": credit}
    case = loaded(*stored(monkeypatch, MASKS), settings(**changes, process__normalization="none"))
    source = case.sources().by_name["process"]
    for row, turns in enumerate(
        [[(0, 1), (3,), (5,)], [(0,), (2,)], [(0, 1)], [(0,)], [(1,)], [(0,)]]
    ):
        score_1S = torch.tensor(
            [[sum(float(case.scored.reward_BT[row, t]) for t in turn) for turn in turns]]
        )
        paid_S = credit_rewards(credit, score_1S, torch.ones_like(score_1S))[0]
        expected_T = torch.zeros(6).index_put((torch.tensor([turn[-1] for turn in turns]),), paid_S)
        torch.testing.assert_close(source.reward_BT[row], expected_T)
    assert torch.equal(source.mask_BT.bool(), case.rollouts.turns.end_BT)


# ---- rewards of turns ----------------------------------------------------------------------------

PAYS = {"turns__coefficient": 2.0, "process__form": "none", "whitening": False}


def test_tool_rewards_are_a_source_at_the_ends_of_turns(monkeypatch):
    case = loaded(*stored(monkeypatch, MASKS, rewards=REWARDS), settings(**PAYS))
    expected = [
        [0, 0.5, 0, -1, 0, 0],
        [1, 0, 2, 0, 0, 0],
        [0] * 6,
        [3, 0, 0, 0, 0, 0],
        [0, 0.25, 0, 0, 0, 0],
    ]
    assert case.rollouts.turns.reward_BT.tolist() == [*expected, [0] * 6, [0] * 6]
    sources = case.sources().by_name
    result = case.step()
    assert set(sources) == {"outcome", "turns"} and sources["turns"].estimator == "turn_rloo"
    # The rewards of each rollout sum to -0.5, 3, 0, 3, 0.25 and 0.
    assert result.metrics["prime/turns/reward"] == pytest.approx((-0.5 + 3.0 + 3.0 + 0.25) / 6)
    alone = loaded(
        *stored(monkeypatch, MASKS, rewards=REWARDS),
        settings(process__form="none", whitening=False),
    )
    more_BT = result.advantage_BT - alone.step().advantage_BT
    # The second turn of the first two rollouts: -1 and 2 are what is left, each the other's
    # baseline, times 2.
    assert more_BT[0, 3] == pytest.approx(2 * -3.0)
    assert more_BT[1, 2] == pytest.approx(2 * 3.0)
    # The third turn of the first has no company: the others' mean return, (3 + 0) / 2.
    assert more_BT[0, 5] == pytest.approx(2 * -1.5)
    assert "prime/turns/return_std" in result.metrics


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {},
            (
                "reports tool_rewards=None, and prime/turns=rewards needs a list of numbers; use"
                " verl's tool_agent"
            ),
        ),
        ({"tool_rewards": [NAN]}, r"reports tool_rewards=\[nan\]"),
        ({"tool_rewards": []},
         "has 3 turns and 0 rewards in tool_rewards, which must be one for every turn"),
        ({"tool_rewards": [1.0] * 4}, "has 3 turns and 4 rewards in tool_rewards"),
    ],
)  # fmt: skip
def test_missing_rewards_of_turns_are_reported_in_one_line(monkeypatch, extra, message):
    queue, batch = stored(monkeypatch, MASKS, rewards=REWARDS)
    queue.put(
        KEYS[0],
        queue.tags["train"][KEYS[0]],
        extra_fields={"reward_extra_info": {"acc": 1.0}, **extra},
    )
    with pytest.raises(RuntimeError, match=f"^.*rollout {KEYS[0]} {message}") as error:
        loaded(queue, batch, settings(**PAYS))
    assert "\n" not in str(error.value)
