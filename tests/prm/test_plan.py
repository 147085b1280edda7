# SPDX-License-Identifier: Apache-2.0
"""Mini-batches of the PRM: their composition depends neither on the number of ranks nor on the order of the rows."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_ext.prm.plan import plan_mini_batches


@st.composite
def rollouts(draw):
    """Rows of complete and incomplete groups, padded to whole mini-batches for 4 ranks."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    mini_batch_size = draw(st.sampled_from([4, 8, 12]))
    keys = []
    for prompt in range(draw(st.integers(1, 8))):
        sessions = range(draw(st.integers(1, 4)))
        keys += [f"{prompt:012d}_{session}_0" for session in sessions]
    n_valid = len(keys)
    extra = draw(st.integers(0, 1)) * mini_batch_size
    keys += [f"pad{number}_0_0" for number in range(-n_valid % mini_batch_size + extra)]
    padding = [key.startswith("pad") for key in keys]
    lengths = [rng.randint(1, 400) for _ in keys]
    return keys, padding, lengths, mini_batch_size


def mini_batches(plan, keys, mini_batch_size, n_ranks):
    """The keys of each mini-batch, from what every rank is handed; and how many tokens of it each rank gets."""
    n_rows = len(keys)
    share, step = n_rows // n_ranks, mini_batch_size // n_ranks
    result = []
    for number in range(n_rows // mini_batch_size):
        rows = []
        for rank in range(n_ranks):
            start = rank * share + number * step
            rows += plan.order[start : start + step]
        result.append({keys[row] for row in rows})
    return result


def weights_of(plan, keys):
    return dict(zip(keys, plan.weight_B.tolist(), strict=True))


@given(rollouts(), st.integers(0, 1000))
def test_same_mini_batches_and_weights_for_any_ranks_and_any_row_order(data, seed):
    keys, padding, lengths, size = data
    expected = None
    for n_ranks in (1, 2, 4):
        order = list(range(len(keys)))
        random.Random(seed + n_ranks).shuffle(order)
        shuffled = [[values[row] for row in order] for values in (keys, padding, lengths)]
        plan = plan_mini_batches(*shuffled, size, n_ranks)
        assert sorted(plan.order) == list(range(len(keys)))
        weights = dict(zip(shuffled[0], plan.weight_B.tolist(), strict=True))
        found = (mini_batches(plan, shuffled[0], size, n_ranks), weights)
        expected = expected or found
        assert found == expected


@given(rollouts())
def test_weights_are_a_mean_over_each_mini_batch_and_padding_weighs_nothing(data):
    keys, padding, lengths, size = data
    plan = plan_mini_batches(keys, padding, lengths, size, 2)
    weight = dict(zip(keys, plan.weight_B.tolist(), strict=True))
    batches = mini_batches(plan, keys, size, 2)
    n_valid = len(keys) - sum(padding)
    for number, members in enumerate(batches):
        assert members == {key for row, key in enumerate(keys) if plan.mini_batch_B[row] == number}
        valid = [key for key in members if not key.startswith("pad")]
        assert all(weight[key] == pytest.approx(1 / len(valid)) for key in valid)
        assert all(weight[key] == 0.0 for key in members if key not in valid)
        # Spread evenly, so that no mini-batch is a handful of rollouts with the weight of a full one.
        assert abs(len(valid) - n_valid / len(batches)) < 1
    assert sum(weight.values()) == pytest.approx(min(len(batches), n_valid))


@given(st.integers(1, 6), st.integers(2, 4), st.integers(0, 1000))
def test_complete_groups_stay_together(prompts_per_batch, n, seed):
    keys = [f"{prompt:012d}_{session}_0" for prompt in range(2 * prompts_per_batch) for session in range(n)]
    random.Random(seed).shuffle(keys)
    plan = plan_mini_batches(keys, [False] * len(keys), [5] * len(keys), prompts_per_batch * n, 1)
    for members in mini_batches(plan, keys, prompts_per_batch * n, 1):
        assert len({key.split("_")[0] for key in members}) == prompts_per_batch


@given(rollouts(), st.integers(0, 40), st.integers(0, 1000))
def test_every_mini_batch_has_its_share_of_replayed_rows_on_any_number_of_ranks(data, n_old, seed):
    keys, padding, lengths, size = data
    count = len(keys) // size
    whole = -(-(size + -(-n_old // count)) // 4) * 4
    keys = keys + [f"replay{row:06d}_0_0" for row in range(n_old)]
    filled = count * whole - len(keys)
    keys += [f"padmore{row}_0_0" for row in range(filled)]
    padding = [*padding, *[False] * n_old, *[True] * filled]
    old = [key.startswith("replay") for key in keys]
    lengths = [*lengths, *[7] * (n_old + filled)]
    found = []
    for n_ranks in (1, 2, 4):
        order = list(range(len(keys)))
        random.Random(seed + n_ranks).shuffle(order)
        columns = [[values[row] for row in order] for values in (keys, padding, lengths, old)]
        plan = plan_mini_batches(*columns[:3], whole, n_ranks, columns[3])
        found.append((mini_batches(plan, columns[0], whole, n_ranks), weights_of(plan, columns[0])))
    assert found[0] == found[1] == found[2]
    batches, weight = found[0]
    # The new rows are where they are without the others.
    plain = plan_mini_batches(keys[: len(data[0])], padding[: len(data[0])], lengths[: len(data[0])], size, 1)
    new = [{key for key in batch if not key.startswith(("pad", "replay"))} for batch in batches]
    assert new == [
        {key for key in batch if not key.startswith("pad")} for batch in mini_batches(plain, data[0], size, 1)
    ]
    for batch, own in zip(batches, new, strict=True):
        replayed = {key for key in batch if key.startswith("replay")}
        assert abs(len(replayed) - n_old / count) < 1
        assert all(weight[key] == pytest.approx(1 / len(own | replayed)) for key in own | replayed)


def test_ranks_get_about_the_same_number_of_tokens():
    lengths = [400, 10, 390, 20, 380, 30, 370, 40]
    keys = [f"{row:012d}_0_0" for row in range(8)]
    plan = plan_mini_batches(keys, [False] * 8, lengths, 8, 2)
    tokens = [sum(lengths[row] for row in plan.order[part]) for part in (slice(0, 4), slice(4, 8))]
    assert abs(tokens[0] - tokens[1]) <= 40


@pytest.mark.parametrize("rows, size, ranks", [(6, 4, 1), (8, 4, 3)])
def test_sizes_that_do_not_divide_are_refused(rows, size, ranks):
    with pytest.raises(ValueError, match=f"{rows} rows do not divide into mini-batches of {size} over {ranks} ranks"):
        plan_mini_batches([str(row) for row in range(rows)], [False] * rows, [1] * rows, size, ranks)
