# SPDX-License-Identifier: Apache-2.0
"""Known defects of the released PRIME code (O) and of verl's recipe (R): where each is tested, or why it cannot occur.

The numbers are those of the notes made when both implementations were read. A test that is named
here has to exist; the tests of the PRM that have no better place stand below.
"""

import re
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.utils.torch_functional import get_constant_schedule_with_warmup

from prime_ext.config.settings import PRMSettings
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.prm.plan import plan_mini_batches

TESTS = Path(__file__).parent

# Defect: (what went wrong, file of the test, name of the test).
TESTED = {
    "O1": (
        "coefficients and the KL penalty never reach the advantage",
        "trainer/test_reward_sources.py",
        "test_o1_coefficients_reach_the_advantage",
    ),
    "O2 O3 O4": ("the update modes before and none crash", "e2e/test_variants.py", "test_two_steps"),
    "O5 R17": (
        "scores of later mini-batches come from a PRM that has moved, unsaid",
        "prm/test_prm_engine.py",
        "test_interleaved_scores_later_mini_batches_with_a_prm_that_has_moved",
    ),
    "O6 R23": (
        "the normaliser is that of one rank",
        "trainer/test_reward_sources.py",
        "test_o6_r23_the_normaliser_is_that_of_the_global_batch_not_of_a_part_of_it",
    ),
    "O7": ("rewards without beta", "trainer/test_reward_sources.py", "test_o7_the_rewards_carry_beta"),
    "O8 R14": (
        "the gradient of a saturated PRM is lost",
        "algorithms/test_prm_losses.py",
        "test_a_saturated_prm_that_is_wrong_keeps_its_gradient",
    ),
    "O9": (
        "the reference keeps its low precision",
        "algorithms/test_implicit_reward.py",
        "test_low_precision_inputs_are_subtracted_in_float32",
    ),
    "O10": (
        "the first step has the learning rate 0",
        "test_known_defects.py",
        "test_o10_the_first_update_has_a_learning_rate",
    ),
    "O11": (
        "rounding noise of an untrained PRM is blown up",
        "trainer/test_reward_sources.py",
        "test_o11_an_untrained_prm_with_the_gate_at_its_start_changes_nothing",
    ),
    "O12 R22": (
        "the PRM's schedule does not know how long it is",
        "trainer/test_prm_schedule.py",
        "test_o12_r22_the_schedule_of_the_prm_knows_its_length",
    ),
    "O14 R11": (
        "a response whose last token ends it counts as truncated",
        "trainer/test_replay_buffer.py",
        "test_o14_r11_a_response_that_ends_in_the_last_place_is_not_truncated",
    ),
    "O15 O16 R25": (
        "groups of one and empty responses divide by zero",
        "trainer/test_reward_sources.py",
        "test_o15_o16_r25_groups_of_one_and_rows_without_tokens_are_finite",
    ),
    "O17 O18 O19": (
        "prompts that were generated or fetched are lost",
        "trainer/test_replay_buffer.py",
        "test_surplus_prompts_are_generated_again_in_the_next_step",
    ),
    "O20": ("metrics cover a part of the batch only", "trainer/test_replay_buffer.py", "test_metrics_add_up"),
    "O23": (
        "a default value that the code does not accept",
        "config/test_config.py",
        "test_every_key_of_prime_has_a_field_and_every_field_a_key",
    ),
    "O24 R18": (
        "gae and remax stop with an error",
        "trainer/test_reward_sources.py",
        "test_o24_r18_gae_and_remax_work_where_the_released_code_and_the_recipe_stop",
    ),
    "O27 O28": (
        "metrics of one rank or of one micro-batch",
        "prm/test_prm_engine.py",
        "test_two_ranks_compute_what_one_computes",
    ),
    "O29": (
        "policy and PRM at different temperatures",
        "test_known_defects.py",
        "test_o29_both_sides_of_the_ratio_have_the_same_temperature",
    ),
    "O31": ("the PRM is saved without its tokenizer", "prm/test_adapter.py", "test_an_exported_adapter_is_merged"),
    "O33 R12": (
        "rows are assumed to be in the order of the prompts",
        "prm/test_prm_engine.py",
        "test_contents_of_padding_and_the_order_of_rows_change_nothing",
    ),
    "O35": (
        "PRM and reference differ before any training",
        "prm/test_prm_engine.py",
        "test_an_untrained_prm_equals_its_reference_and_its_first_loss_is_ln_2",
    ),
    "R1": (
        "the last token is never rewarded",
        "trainer/test_reward_sources.py",
        "test_r1_the_last_token_is_rewarded_unless_prefix_values_are_asked_for",
    ),
    "R2": (
        "the granularity of the whole response crashes",
        "trainer/test_reward_sources.py",
        "test_r2_the_whole_response_may_have_more_than_one_token",
    ),
    "R3 R4 R5": (
        "dynamic batches crash, or give rollouts the scores of others",
        "prm/test_prm_engine.py",
        "test_scores_losses_gradients_and_weights_equal_a_plain_loop",
    ),
    "R6": ("the kind of reference is ignored", "e2e/test_variants.py", "test_two_steps"),
    "R10": (
        "rejected prompts fill the batch",
        "trainer/test_replay_buffer.py",
        "test_data_outside_the_band_ends_in_an_error_that_says_what_to_change",
    ),
    "R13": (
        "mini-batches of the PRM are counted in other units than the policy's",
        "test_known_defects.py",
        "test_r13_mini_batches_are_counted_in_prompts",
    ),
    "R15": (
        "partial credit counts as correct",
        "algorithms/test_prm_losses.py",
        "test_a_partial_credit_is_neither_correct_nor_wrong",
    ),
    "R16": (
        "a sum instead of a mean",
        "algorithms/test_prm_losses.py",
        "test_the_loss_is_a_mean_so_that_a_batch_twice_as_large_has_the_same_loss",
    ),
    "R19": ("one step fewer than asked for", "e2e/test_variants.py", "test_two_steps"),
    "R20 R21": (
        "a run cannot be resumed",
        "e2e/test_resume.py",
        "test_final_weights_and_optimisers_are_those_of_the_uninterrupted_run",
    ),
    "R24": ("no discount", "trainer/test_reward_sources.py", "test_r24_each_source_has_a_discount_of_its_own"),
}

# Defects of parts that verl 0.9.1 now does, or that do not exist here, with the reason.
ABSENT = {
    "O13": "schedules move once per update of a step, as verl's do for the policy; docs/implicit_prm.md says so",
    "O21 R29": "validation is verl's: unshuffled, every row",
    "O22 R30": "metrics of validation are verl's",
    "O25 R26": "PRM and reference are verl engines of one configuration section",
    "O26": "there is no switching of chat templates: another tokenizer is refused",
    "O30": "no loop over tokens",
    "O32 R28": "recipes and documentation are run by the tests",
    "O34": "prompts are stored without padding",
    "O36": "the data set brings its own system message",
    "O37": "verl's trainer stops at trainer.total_training_steps",
    "O38": "verl computes the entropy only to log it",
    "R7 R8": "PRM and reference share one code path and one precision",
    "R9": "the reference of the KL penalty is computed only if the penalty or the PRM reads it",
    "R27": "prime_ext.verl_compat checks every name of verl that is relied on",
}


def numbers(table):
    return [number for key in table for number in key.split()]


def test_every_defect_of_both_lists_is_accounted_for_once():
    found = sorted([*numbers(TESTED), *numbers(ABSENT)])
    assert found == sorted([*(f"O{n}" for n in range(1, 39)), *(f"R{n}" for n in range(1, 31))])


@pytest.mark.parametrize("defect", TESTED)
def test_the_test_of_a_defect_exists(defect):
    _, file, name = TESTED[defect]
    assert re.search(rf"^(async )?def {name}\b", (TESTS / file).read_text(), re.MULTILINE)


# ---- the PRM's own -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config():
    overrides = ["actor_rollout_ref.model.path=nowhere", "actor_rollout_ref.rollout.temperature=0.6"]
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("prime_trainer_cpu", overrides)


def prm_of(config, **changes):
    values = OmegaConf.to_container(config.prm, resolve=True)
    return ImplicitPRM(config, PRMSettings.from_mapping({**values, **changes}))


def test_o10_the_first_update_has_a_learning_rate(config):
    """verl's constant schedule without warm-up: its factor at step 0 is 1, not 0."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-6)
    schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=config.prm.optim.lr_warmup_steps)
    assert schedule.get_last_lr() == [1e-6]


@pytest.mark.parametrize(("reference", "temperature"), [("policy", 0.6), ("kl", 0.6), ("frozen", 1.0), ("none", 1.0)])
def test_o29_both_sides_of_the_ratio_have_the_same_temperature(config, reference, temperature):
    prm = prm_of(config, reference=reference)
    assert prm.temperature == temperature
    assert prm._update_options()["temperature"] == temperature


def test_r13_mini_batches_are_counted_in_prompts(config):
    prm = prm_of(config, mini_batch_size=3)
    assert prm.mini_batch_rows == 12
    keys = [f"{prompt:03d}_{session}_0" for prompt in range(6) for session in range(4)]
    plan = plan_mini_batches(keys, [False] * 24, [5] * 24, prm.mini_batch_rows, data_parallel_size=1)
    assert {keys[row][:3] for row in plan.order[:12]} == {"000", "001", "002"}
