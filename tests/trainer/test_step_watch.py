# SPDX-License-Identifier: Apache-2.0
"""The watch for responses of one step."""

from contextlib import nullcontext

import pytest

from prime_ext.step.step_watch import BATCHES_WITHOUT_STEPS, ScoringFailed, StepWatch

TEXTS = ["One. Two.", "three"]


@pytest.mark.parametrize(
    ("counts", "warned", "ended"), [([1, 1], True, True), ([2, 1], False, False)]
)
def test_responses_of_one_step_warn_and_end_a_run(caplog, counts, warned, ended):
    watch = StepWatch("labels")
    for _ in range(BATCHES_WITHOUT_STEPS - 1):
        watch.look(counts, lambda: TEXTS)
    line = "0 of 2 responses have two steps with prime.steps=labels"
    assert caplog.text.count(line) == warned
    assert bool(caplog.text) == warned
    if warned:
        assert "two with prime.steps=auto in 1, prime.steps=sentences in 1; or" in caplog.text
    with pytest.raises(ScoringFailed, match=line) if ended else nullcontext():
        watch.look(counts, lambda: TEXTS)


def test_one_batch_with_steps_starts_the_count_again():
    watch = StepWatch("labels")
    for counts in ([1, 1], [2, 1]) * BATCHES_WITHOUT_STEPS:
        watch.look(counts, lambda: TEXTS)


@pytest.mark.parametrize(("several", "warned"), [(1, 1), (2, 0)])
def test_the_first_batch_warns_below_half(caplog, several, warned):
    StepWatch("labels").look([2] * several + [1] * (4 - several), lambda: TEXTS)
    assert len(caplog.records) == warned
