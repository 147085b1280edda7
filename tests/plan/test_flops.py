# SPDX-License-Identifier: Apache-2.0
"""FLOPs per rollout token of the PRM's phase: N is the number of weights."""

import pytest

from prime_ext.plan.flops import Passes, flops, prm_passes, training_passes


@pytest.mark.parametrize(
    "mode, reference, expected",
    [
        # 2 reference + 2 forward + 2 repeated forward + 4 backward
        ("interleaved", "own", 10),
        # the log-probabilities of the reference exist already
        ("interleaved", "shared", 8),
        # a scoring pass more
        ("before", "own", 12),
        ("after", "own", 12),
        ("before", "shared", 10),
        # verl's recipe passes the reference once to score and once to update
        ("before", "twice", 14),
        ("none", "own", 4),
    ],
)
def test_flops_per_token_with_activation_recomputation(mode, reference, expected):
    assert prm_passes(mode, reference, recompute=True).flops_per_token_and_weight == expected


def test_without_recomputation_a_forward_pass_less():
    assert prm_passes("interleaved", "own", recompute=False).flops_per_token_and_weight == 8


def test_an_adapter_spares_the_gradient_of_the_weights():
    assert prm_passes("interleaved", "shared", recompute=True, adapter=True).flops_per_token_and_weight == 6
    assert prm_passes("interleaved", "own", recompute=True, adapter=True).flops_per_token_and_weight == 8


def test_frozen_layers_spare_the_backward_pass():
    passes = training_passes(recompute=True, share=0.25)
    assert passes.flops_per_token_and_weight == 2 + 0.25 * 6
    assert passes.attention_forwards == 1 + 0.25 * 3


def test_the_policys_update_is_the_measure():
    policy = training_passes(recompute=True).flops_per_token_and_weight
    assert policy == 8
    assert prm_passes("interleaved", "shared", recompute=True).flops_per_token_and_weight / policy == 1.0
    assert prm_passes("before", "twice", recompute=True).flops_per_token_and_weight / policy == 1.75


def test_attention_against_a_count_of_pairs():
    """Two layers of width 6 over one sequence of 4 tokens: scores and values, 2 FLOPs each, for half of the pairs."""
    layers, width, length = 2, 6, 4
    scores_and_values = 2 * (2 * width * length * length) / 2
    got = flops(Passes(forward=1), weights=0, attention_width=layers * width, tokens=length, length=length)
    assert got == layers * scores_and_values


def test_attention_of_a_training_pass_costs_four_forward_passes_with_recomputation():
    assert training_passes(recompute=True).attention_forwards == 4
