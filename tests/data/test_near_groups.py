# SPDX-License-Identifier: Apache-2.0
"""Groups: whatever the contamination report would call a hit stays together."""

from hypothesis import given
from hypothesis import strategies as st

from data_preprocessing.contamination_index import ContaminationIndex, Place
from data_preprocessing.near_groups import near_groups

PREMISE = "Mira picked 14 pears and her brother picked 9 pears in the orchard"
PROBLEMS = [
    (PREMISE, "They picked 23 pears"),
    (PREMISE, "They have nothing at all to carry home in the evening"),
    ("Nobody had ever seen the keeper of the lighthouse smile", PREMISE.replace("14", "3")),
    ("The kettle on the stove has been boiling for an hour", "It is hot"),
    ("The kettle on the stove has been boiling for 2 hours", "It is cold, says the old man with the grey beard"),
    ("A ferry crosses 6 times", "It is hot"),
]


def test_shared_parts_and_chains_of_them_are_one_group():
    groups = near_groups(PROBLEMS)
    assert groups[0] == groups[1] == groups[2]
    # "It is hot" is too short to name a problem.
    assert len({groups[0], groups[3], groups[5]}) == 3
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in groups)


@given(st.permutations(PROBLEMS), st.integers(1, len(PROBLEMS)))
def test_names_depend_on_neither_order_nor_other_groups(shuffled, n):
    whole = dict(zip(PROBLEMS, near_groups(PROBLEMS), strict=True))
    assert dict(zip(shuffled, near_groups(shuffled), strict=True)) == whole
    kept = [problem for problem in PROBLEMS if whole[problem] in {whole[other] for other in shuffled[:n]}]
    assert dict(zip(kept, near_groups(kept), strict=True)) == {problem: whole[problem] for problem in kept}


@given(st.lists(st.sampled_from(PROBLEMS), min_size=1, max_size=8))
def test_no_row_hits_a_row_of_another_group(problems):
    groups = near_groups(problems)
    for name in set(groups):
        index = ContaminationIndex()
        for row, (problem, group) in enumerate(zip(problems, groups, strict=True)):
            if group == name:
                index.add(problem, Place(0, row))
        for row, (problem, group) in enumerate(zip(problems, groups, strict=True)):
            if group != name:
                assert index.pass_by(problem, Place(0, row)) is None
