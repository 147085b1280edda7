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


@given(rollouts(), st.one_of(st.just(0), st.integers(1, 40)), st.integers(0, 1000))
def test_mini_batches_and_weights_are_the_same_for_any_ranks_and_any_row_order(data, n_old, seed):
    """Valid rows and replayed ones are each spread evenly, weigh the same in their mini-batch, and padding nothing."""
    keys, padding, lengths, size = data
    count = len(keys) // size
    whole = -(-(size + -(-n_old // count)) // 4) * 4
    every = keys + [f"replay{row:06d}_0_0" for row in range(n_old)]
    every += [f"padmore{row}_0_0" for row in range(count * whole - len(every))]
    columns = (every, [key.startswith("pad") for key in every], [*lengths, *[7] * (len(every) - len(keys))])
    found = []
    for n_ranks in (1, 2, 4):
        order = random.Random(seed + n_ranks).sample(range(len(every)), len(every))
        shuffled = [[values[row] for row in order] for values in columns]
        old = [key.startswith("replay") for key in shuffled[0]]
        plan = plan_mini_batches(*shuffled, whole, n_ranks, old if n_old else None)
        assert sorted(plan.order) == list(range(len(every)))
        weight, number = (
            dict(zip(shuffled[0], values.tolist(), strict=True)) for values in (plan.weight_B, plan.mini_batch_B)
        )
        found.append((mini_batches(plan, shuffled[0], whole, n_ranks), weight, number))
    assert found[0] == found[1] == found[2]
    batches, weight, number = found[0]
    # The new rows are where they are without the others.
    plain = mini_batches(plan_mini_batches(keys, padding, lengths, size, 1), keys, size, 1)
    n_valid = len(keys) - sum(padding)
    for at, (batch, alone) in enumerate(zip(batches, plain, strict=True)):
        replayed = {key for key in batch if key.startswith("replay")}
        new = {key for key in batch - replayed if not key.startswith("pad")}
        assert new == {key for key in alone if not key.startswith("pad")}
        assert abs(len(new) - n_valid / count) < 1 and abs(len(replayed) - n_old / count) < 1
        for key in batch:
            counts = key in new or key in replayed
            assert number[key] == at and weight[key] == pytest.approx(1 / len(new | replayed) if counts else 0.0)


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
