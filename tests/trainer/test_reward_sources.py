# SPDX-License-Identifier: Apache-2.0
"""From the settings to the reward sources of a step, on rollouts as the trainer sees them."""

import math

import pytest
import torch
from small_batch import NAN, PADDING, ROLLOUTS, batch_of, filled_queue, score, settings
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.ray_trainer import compute_advantage

from prime_ext.algorithms.advantage import last_token_mask, source_return
from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.normalization import OutcomeRelativeScale
from prime_ext.algorithms.returns import return_to_go, whiten
from prime_ext.config.chain_settings import ACCUMULATIONS, CREDITS, REWARD_POSITIONS, SHAPES
from prime_ext.config.reward_settings import OUTCOME_ESTIMATORS, PROCESS_ESTIMATORS, StepSettings
from prime_ext.trainer.prime_step import PrimeStep, ResponseSteps
from prime_ext.trainer.reward_sources import advantages, build_sources, drop_inconsistent
from prime_ext.utils import transfer_queue as transfer
from recipes.quickstart.tokenizer import build_tokenizer

KEYS = [*ROLLOUTS, *PADDING]
TOKENIZER = build_tokenizer()
# The texts of the rollouts; the hole of the third one is a delimiter that is not the model's own.
TEXTS = ["1;2", "3;", "4;;5", "6", ";7"]
GREEDY = {"000000000007": 1.0, "000000000009": 0.25}


@pytest.fixture
def queue(monkeypatch):
    queue = filled_queue(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    for key, text in zip(ROLLOUTS, TEXTS, strict=True):
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        assert len(ids) == len(ROLLOUTS[key][1])
        n = len(ids)
        queue.put(
            key,
            queue.tags["train"][key],
            responses=torch.tensor(ids),
            prompts=torch.tensor([1]),
            loss_mask=torch.tensor(ROLLOUTS[key][1]),
            values=torch.rand(n, generator=generator),
            old_log_probs=-torch.rand(n, generator=generator),
        )
    for key in PADDING:
        nothing = {"responses": torch.tensor([0]), "values": torch.tensor([NAN]), "old_log_probs": torch.tensor([NAN])}
        nothing |= {"prompts": torch.tensor([0]), "loss_mask": queue.fields["train"][key]["response_mask"]}
        queue.put(key, queue.tags["train"][key], **nothing)
    return queue


STEPS = {"process__granularity": "step", "steps__splitter": "delimiters", "steps__delimiters": [";"]}


def loaded(queue, options, scored=True):
    steps = ResponseSteps(options.steps, TOKENIZER) if options.needs_steps else None
    step = PrimeStep.load(batch_of(queue, KEYS), options, False, steps, GREEDY)
    if scored:
        score(step)
    return step


def process_source(queue, **changes):
    step = loaded(queue, settings(process__normalization="none", **changes))
    return step, build_sources(step, 1.0)["process"]


# ---- from the PRM's scores to rewards ---------------------------------------------------------------------------


def test_rewards_relative_to_the_policy_carry_no_beta_and_a_divergence_is_no_source(queue):
    relative = {"process__target": "policy", "process__discount": 0.0, "process__estimator": "reinforce"}
    step, source = process_source(queue, **relative)
    plain, source_of_reference = process_source(queue)  # beta * log pi_prm, as the reference is 0
    assert torch.equal(source_of_reference.reward_BT, plain.process_reward_BT)
    assert torch.equal(source_of_reference.mask_BT, plain.mask_BT)
    expected_BT = plain.process_reward_BT / 0.05 - step.old_log_prob_BT
    torch.testing.assert_close(source.reward_BT, torch.where(step.mask_BT.bool(), expected_BT, 0.0))
    torch.testing.assert_close(source_return(source, step.mask_BT, step.group_B), source.reward_BT)
    divergence = loaded(queue, settings(process__form="kl", process__target="policy"))
    assert set(build_sources(divergence, 1.0)) == {"outcome"}


def test_the_largest_advantage_is_that_of_the_clip(queue):
    relative = {"process__target": "policy", "process__discount": 0.0, "process__estimator": "position_mean"}
    step, source = process_source(queue, **relative)
    advantage_BT = source_return(source, step.mask_BT, step.group_B)
    _, clipped = process_source(queue, process__clip=0.01, **relative)
    clipped_BT = source_return(clipped, step.mask_BT, step.group_B)
    torch.testing.assert_close(clipped_BT, advantage_BT.clamp(-0.01, 0.01))
    assert not torch.equal(clipped_BT, advantage_BT)


def test_step_rewards_are_paid_at_the_end_of_each_step(queue):
    step, source = process_source(queue, **STEPS)
    metrics = step.metrics
    # "4" has a hole behind it, so that its step goes on to the next delimiter of the model.
    assert source.mask_BT.tolist()[:5] == [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
    reward_BT, r = step.process_reward_BT, source.reward_BT
    assert float(r[0, 1]) == pytest.approx(float(reward_BT[0, :2].sum())) and float(r[0, 2]) == float(reward_BT[0, 2])
    torch.testing.assert_close(r.sum(-1), reward_BT.sum(-1))
    assert metrics["prime/steps/mean"] == pytest.approx((2 + 1 + 2 + 1 + 1) / 5) and metrics["prime/steps/max"] == 2
    assert metrics["prime/steps/timed_out"] == 0


def test_token_ids_as_delimiters_give_the_same_steps_as_their_text(queue):
    _, by_text = process_source(queue, **STEPS)
    ids = [TOKENIZER.convert_tokens_to_ids(";")]
    _, by_id = process_source(queue, **{**STEPS, "steps__delimiters": ids})
    rows = [0, 1, 2, 3]
    assert torch.equal(by_text.mask_BT[rows], by_id.mask_BT[rows])
    # A response that begins with a delimiter: in the text nothing is written before it, by token it is a step.
    assert by_id.mask_BT[4].tolist() == [1, 1, 0, 0]


def test_the_whole_response_is_one_reward_and_prefix_values_leave_the_last_token_without_one(queue):
    step, whole = process_source(queue, process__granularity="response")
    last_BT = last_token_mask(step.mask_BT).bool()
    assert torch.equal(whole.mask_BT.bool(), last_BT) and not whole.reward_BT[~last_BT].any()
    torch.testing.assert_close(whole.reward_BT.sum(-1), step.process_reward_BT.sum(-1))
    step, prefix = process_source(queue, process__granularity="prefix_value")
    assert torch.equal(prefix.mask_BT, step.mask_BT)
    assert torch.equal(prefix.reward_BT, torch.where(last_BT, 0.0, step.process_reward_BT))


@pytest.mark.parametrize(
    ("reward_lambda", "discount", "expected"), [(0.5, 0.0, 0.5), (1.0, 0.0, 1.0), (0.0, 0.5, 0.5), (0.0, 1.0, 1.0)]
)
def test_lambda_rewards_and_discounts_are_applied_once(queue, reward_lambda, discount, expected):
    changes = {"process__reward_lambda": reward_lambda, "process__discount": discount}
    plain = {"process__estimator": "reinforce", "process__normalization": "none", "outcome__coefficient": 0.0}
    step = loaded(queue, settings(**changes, **plain, whitening=False))
    advantage_BT, _ = advantages(step, 1.0)
    torch.testing.assert_close(advantage_BT, return_to_go(step.process_reward_BT, step.mask_BT, expected))


@pytest.mark.parametrize("credit", CREDITS)
def test_every_credit_pays_at_step_ends_only_and_is_finite_for_a_single_step(queue, credit):
    threshold = {"process__credit_threshold": 0.0} if "clip" in credit else {}
    step, source = process_source(queue, **STEPS, process__credit=credit, **threshold)
    assert source.reward_BT.isfinite().all() and not source.reward_BT[~source.mask_BT.bool()].any()
    single = [1, 3, 4]
    total_B = step.process_reward_BT.sum(-1)[single]
    expected_B = {"delta": 0 * total_B, "clip_delta": 0 * total_B, "clip": total_B.clamp_max(0)}.get(credit, total_B)
    torch.testing.assert_close(source.reward_BT.sum(-1)[single], expected_B)


@pytest.mark.parametrize("where", ["uniform", "last"])
@pytest.mark.parametrize("changes", [{}, STEPS, {"process__granularity": "prefix_value"}])
def test_redistributed_rewards_move_credit_inside_a_response_only(queue, where, changes):
    _, source = process_source(queue, **changes, process__redistribution=where)
    assert source.reward_BT.sum(-1).tolist() == pytest.approx([0.0] * len(KEYS), abs=1e-6)


def test_a_pattern_that_takes_too_long_makes_one_step_and_is_counted(queue, monkeypatch):
    monkeypatch.setattr("prime_ext.step_rm.response_cut.split_steps", _never)
    options = settings(process__granularity="step", steps__splitter="pattern", steps__pattern="^x")
    step = loaded(queue, options)
    source, metrics = build_sources(step, 1.0)["process"], step.metrics
    assert torch.equal(source.mask_BT, last_token_mask(step.mask_BT))
    assert metrics["prime/steps/timed_out"] == len(ROLLOUTS)


def _never(*_):
    raise TimeoutError


def test_special_tokens_belong_to_the_last_step():
    steps = ResponseSteps(StepSettings("delimiters", None, [";"]), TOKENIZER)
    ids = TOKENIZER.encode("1;2;", add_special_tokens=False) + [TOKENIZER.eos_token_id]
    boundary_BT = steps.boundaries(torch.tensor([ids]), torch.ones(1, 5))
    assert boundary_BT.tolist() == [[False, True, False, False, False]]


# ---- chains: one reward for the steps of a response ---------------------------------------------------------------

CHAIN = {**STEPS, "process__step_score": "sigmoid", "process__accumulation__mode": "geometric"}
PSPO = {**CHAIN, "process__shaping__name": "weibull"}


def step_sums(step):
    """beta * q summed over each step, by hand: "1;" "2" / "3;" / "4;;" "5" / "6" / ";7"."""
    r = [[float(x) for x in row] for row in step.process_reward_BT]
    return [[r[0][0] + r[0][1], r[0][2]], [r[1][0] + r[1][1]], [r[2][0] + r[2][2], r[2][3]], [r[3][0]], [sum(r[4][:2])]]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_weibull_shaping_of_implicit_step_rewards_is_paid_at_the_last_token(queue):
    step, source = process_source(queue, **PSPO, process__step_score_scale=20.0)
    metrics = step.metrics
    assert torch.equal(source.mask_BT, last_token_mask(step.mask_BT))
    # Two steps are worth .888150 of their geometric mean, one step nothing; padding has none.
    expected = []
    for sums in step_sums(step):
        scores = [sigmoid(20 * x) for x in sums]
        expected.append(0.888150 * math.sqrt(math.prod(scores)) if len(scores) == 2 else 0.0)
    assert source.reward_BT.sum(-1).tolist() == pytest.approx([*expected, 0.0, 0.0], abs=1e-6)
    assert metrics["prime/chain/reward"] == pytest.approx(sum(expected) / 5, abs=1e-6)
    assert metrics["prime/chain/at_most_one_step"] == pytest.approx(3 / 5)
    assert metrics["prime/chain/factor"] == pytest.approx(0.888150 * 2 / 5, abs=1e-6)
    # A chain of one step keeps its score, though it is paid nothing.
    means = [math.prod(sigmoid(20 * x) for x in sums) ** (1 / len(sums)) for sums in step_sums(step)]
    assert metrics["prime/chain/score"] == pytest.approx(sum(means) / 5, abs=1e-6)


def test_places_differ_in_where_a_chain_is_paid_and_not_in_how_much(queue):
    _, last = process_source(queue, **PSPO)
    step, ends = process_source(queue, **PSPO, process__accumulation__reward_position="step_ends")
    _, tokens = process_source(queue, **PSPO, process__accumulation__reward_position="tokens")
    assert ends.mask_BT.tolist()[:5] == [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert torch.equal(tokens.mask_BT, step.mask_BT)
    for source in (ends, tokens):
        torch.testing.assert_close(source.reward_BT.sum(-1), last.reward_BT.sum(-1))
    assert float(ends.reward_BT[0, 1]) == float(ends.reward_BT[0, 2]) > 0


@pytest.mark.parametrize("mode", [mode for mode in ACCUMULATIONS if mode != "none"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reward_position", REWARD_POSITIONS)
def test_every_chain_is_finite_on_a_batch_with_padding_holes_and_single_steps(queue, mode, shape, reward_position):
    changes = {"process__accumulation__mode": mode, "process__shaping__name": shape}
    step = loaded(queue, settings(**{**CHAIN, **changes}, process__accumulation__reward_position=reward_position))
    advantage_BT, _ = advantages(step, 1.0)
    assert advantage_BT.isfinite().all() and not advantage_BT[~step.mask_BT.bool()].any()


# ---- estimators --------------------------------------------------------------------------------------------------


def options_of(outcome="rloo", process="rloo", **changes):
    cuts = {"segments__cuts": "low_probability", "segments__every": 1} if outcome == "segment" else {}
    return settings(outcome__estimator=outcome, process__estimator=process, **{**cuts, **changes})


@pytest.mark.parametrize("outcome", OUTCOME_ESTIMATORS)
@pytest.mark.parametrize("process", PROCESS_ESTIMATORS)
@pytest.mark.parametrize("rewards", [{}, STEPS, PSPO], ids=["tokens", "steps", "chain"])
def test_every_pair_of_estimators_works_on_a_batch_with_padding_holes_and_unequal_groups(
    queue, outcome, process, rewards
):
    step = loaded(queue, options_of(outcome, process, **rewards))
    advantage_BT, return_BT = advantages(step, 1.0)
    outside_BT = ~step.mask_BT.bool()
    assert advantage_BT.isfinite().all() and return_BT[~outside_BT].isfinite().all()
    assert not advantage_BT[outside_BT].any() and advantage_BT.any()


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_with_a_process_coefficient_of_zero_every_outcome_estimator_is_that_of_the_name_bit_by_bit(queue, name):
    step = loaded(queue, options_of(name, process__coefficient=0.0, whitening=None))
    advantage_BT, _ = advantages(step, 1.0)
    source = build_sources(step, 1.0)["outcome"]
    expected_BT = ESTIMATORS[name].advantage(source, step.mask_BT, step.group_B)
    expected_BT = whiten(expected_BT, step.mask_BT) if ESTIMATORS[name].whitens else expected_BT * step.mask_BT
    torch.testing.assert_close(advantage_BT, expected_BT, rtol=1e-5, atol=1e-6)
    untouched = loaded(queue, options_of(name, process__coefficient=0.0, whitening=None))
    untouched.process_reward_BT = None if name not in ("prm_value", "segment") else untouched.process_reward_BT
    assert torch.equal(advantages(untouched, 1.0)[0], advantage_BT)


def test_with_gae_for_both_sources_one_critic_values_the_weighted_sum_of_the_rewards(queue):
    options = options_of("gae", "gae", outcome__coefficient=2.0, process__coefficient=0.5, whitening=False)
    step = loaded(queue, options)
    advantage_BT, return_BT = advantages(step, 0.5)
    metrics = step.metrics
    normalizer = metrics["prime/process/normalizer"] + 1e-6
    reward_BT = 2.0 * step.reward_BT.sum(-1)[:, None] * last_token_mask(step.mask_BT)
    reward_BT = reward_BT + 0.5 * 0.5 * step.process_reward_BT / normalizer
    expected_BT = return_to_go(reward_BT, step.mask_BT)
    torch.testing.assert_close(return_BT, expected_BT)
    value_BT = torch.where(step.mask_BT.bool(), step.value_BT, 0.0)
    torch.testing.assert_close(advantage_BT, expected_BT - value_BT)
    assert "prime/outcome_and_process/return_std" in metrics
    shut_BT, _ = advantages(loaded(queue, options), 0.0)
    torch.testing.assert_close(shut_BT, 2.0 * (step.reward_BT.sum(-1)[:, None] * step.mask_BT - value_BT))


def test_remax_subtracts_the_greedy_reward_and_the_mean_of_the_prompt_where_there_is_none(queue):
    options = options_of("remax", process__coefficient=0.0, whitening=False)
    advantage_BT, _ = advantages(loaded(queue, options), 1.0)
    assert advantage_BT[:5, 0].tolist() == pytest.approx([0.0, -1.0, -1.0, 0.75, 0.25])
    step = PrimeStep.load(batch_of(queue, KEYS), options, False, None, {"000000000007": NAN, "000000000009": 0.0})
    advantage_BT, _ = advantages(step, 1.0)
    assert advantage_BT[:5, 0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1.0, 0.5])


def test_the_prm_as_value_function_is_the_outcome_minus_the_process_rewards_so_far(queue):
    step = loaded(queue, options_of("prm_value", process__coefficient=0.0, whitening=False))
    advantage_BT, _ = advantages(step, 1.0)
    before_BT = step.process_reward_BT.cumsum(-1) - step.process_reward_BT
    expected_BT = (step.reward_BT.sum(-1)[:, None] - before_BT) * step.mask_BT
    torch.testing.assert_close(advantage_BT, expected_BT)


def test_segments_of_steps_are_differences_of_the_probability_of_success(queue):
    changes = {"steps__splitter": "delimiters", "steps__delimiters": [";"], "process__coefficient": 0.0}
    step = loaded(queue, settings(outcome__estimator="segment", whitening=False, **changes))
    advantage_BT, _ = advantages(step, 1.0)
    middle = float(step.process_reward_BT[0, :2].sum().sigmoid())
    assert advantage_BT[0].tolist() == pytest.approx([middle - 0.5, middle - 0.5, 1.0 - middle, 0.0])
    # One step: the outcome minus one half, the PRM's opinion before the first token.
    assert float(advantage_BT[1, 0]) == pytest.approx(-0.5)
    # At unlikely tokens, here all of them; together they are the outcome minus one half as well.
    unlikely = options_of("segment", process__coefficient=0.0, whitening=False, segments__threshold=1.0)
    step = loaded(queue, unlikely)
    advantage_BT, _ = advantages(step, 1.0)
    rows = slice(len(ROLLOUTS))
    torch.testing.assert_close(advantage_BT[rows].sum(-1), step.reward_BT[rows].sum(-1) - 0.5)


IN_VERL = sorted(set(OUTCOME_ESTIMATORS) & {*ADV_ESTIMATOR_REGISTRY, "dr_grpo"})


@pytest.mark.parametrize("name", IN_VERL)
@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (0.9, 0.8)])
def test_with_a_kl_penalty_of_every_token_each_outcome_estimator_is_verls(queue, name, discount, gae_lambda):
    generator = torch.Generator().manual_seed(1)
    for key, (accuracy, mask) in ROLLOUTS.items():
        reward_T = -torch.rand(len(mask), generator=generator) * torch.tensor(mask)
        reward_T[-1] += accuracy
        queue.put(key, queue.tags["train"][key], token_level_rewards=reward_T)
    # verl's other estimators have no discount.
    own = discount if name in ("gae", "reinforce_plus_plus") else 1.0
    # The critic's target knows of no coefficient.
    lam = {"outcome__gae_lambda": gae_lambda, "outcome__coefficient": 3.0} if name == "gae" else {}
    options = options_of(name, process__coefficient=0.0, whitening=None, outcome__discount=own, **lam)
    step = PrimeStep.load(batch_of(queue, KEYS), options, True, None, GREEDY)
    advantage_BT, return_BT = advantages(step, 1.0)

    rows = slice(len(ROLLOUTS))
    data = transfer.fetch_padded(batch_of(queue, list(ROLLOUTS)), ["response_mask", "token_level_rewards", "values"])
    tensors = {"reward_baselines": step.greedy_B[rows]} if name == "remax" else {}
    verls = compute_advantage(
        DataProto.from_dict({**data, **tensors}, {"uid": step.group_B[rows].numpy().astype(object)}),
        {"dr_grpo": "grpo"}.get(name, name),
        gamma=discount,
        lam=gae_lambda,
        norm_adv_by_std_in_grpo=name != "dr_grpo",
        config=AlgoConfig(gamma=discount, lam=gae_lambda),
    )
    mask_BT = step.mask_BT[rows]
    torch.testing.assert_close(advantage_BT[rows], verls.batch["advantages"] * mask_BT, atol=1e-6, rtol=1e-6)
    if name in ("gae", "reinforce_plus_plus"):
        torch.testing.assert_close(return_BT[rows], verls.batch["returns"] * mask_BT, atol=1e-6, rtol=1e-6)
    assert advantage_BT[rows].any() and not advantage_BT[len(ROLLOUTS) :].any()


def test_the_relative_scale_remembers_and_a_shut_gate_still_teaches_it(queue):
    options = settings(process__normalization="outcome_relative", process__relative_share=0.3, whitening=False)
    scale = OutcomeRelativeScale(share=0.3)
    advantages(loaded(queue, options), 0.0, scale)
    first = scale.process_std
    assert first > 0
    step = loaded(queue, options)
    advantages(step, 1.0, scale)
    assert step.metrics["prime/process/return_std_over_outcome"] == pytest.approx(0.3, rel=1e-4)
    later = loaded(queue, options)
    later.process_reward_BT = later.process_reward_BT * 100
    advantages(later, 1.0, scale)
    assert scale.process_std == pytest.approx(0.9 * first + 0.1 * 100 * first, rel=1e-4)
    assert later.metrics["prime/process/relative_factor"] < 0.3 * scale.outcome_std / first


# ---- rows --------------------------------------------------------------------------------------------------------


def test_a_reward_outside_the_mask_is_paid_at_the_last_valid_token(queue):
    """The outcome of a response that ends in a tool's answer; verl's gae would never see it."""
    key = next(iter(ROLLOUTS))
    rewards = torch.tensor([-0.1, 0.0, 0.7])
    queue.put(key, queue.tags["train"][key], response_mask=torch.tensor([1, 1, 0]), token_level_rewards=rewards)
    step = PrimeStep.load(batch_of(queue, KEYS), settings(), True)
    assert step.reward_BT[0].tolist() == pytest.approx([-0.1, 0.7, 0.0, 0.0])
    assert not step.reward_BT[len(ROLLOUTS) :].any()


def test_dropped_rollouts_take_part_in_nothing(queue):
    options = settings(selection__remove=1, process__coefficient=0.0, whitening=False)
    step = loaded(queue, options)
    metrics = step.metrics
    # The first prompt has one correct and two wrong rollouts: a wrong one goes, the one with the higher score.
    rewards_B = step.process_reward_BT.sum(-1)
    drop_inconsistent(step)
    gone = 1 if rewards_B[1] > rewards_B[2] else 2
    stays = 3 - gone
    assert not step.mask_BT[gone].any() and step.mask_BT[stays].any() and step.mask_BT[0].any()
    assert metrics["prime/selection/dropped_wrong"] + metrics["prime/selection/dropped_correct"] == 2
    advantage_BT, _ = advantages(step, 1.0)
    assert not advantage_BT[gone].any()
    # Of the two that stay each is the other's baseline.
    assert float(advantage_BT[0, 0]) == pytest.approx(1.0) and float(advantage_BT[stays, 0]) == pytest.approx(-1.0)
    assert step.valid_B.tolist()[-2:] == [False, False]
