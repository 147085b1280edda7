# SPDX-License-Identifier: Apache-2.0
"""Packed passes give the numbers of examples/minimal_prime.py: sampling, logits, steps of training.

The example computes each response with its prompt; a loop without a cache samples token by token.
"""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, logging

from examples.minimal_prime import METHODS, ChainTask, Rollouts, build_settings
from prime_ext.prm.frozen_layers import train_last_layers
from prime_ext.utils.text_tokens import TextEncoder
from recipes.studies.laboratory import (
    StudyTrainer,
    SumTask,
    demonstrate,
    get_terms,
    keep_mixed,
    label_steps,
    sum_steps,
)
from recipes.studies.packed_model import MixedRollouts, PackedRollouts, sample
from recipes.tiny_model import byte_tokenizer, write_model

N_PER_GROUP = 3
CHAIN = ChainTask(length=3)
# Smooth where a gradient is rounding noise: AdamW would turn its sign into a full step.
EPS = 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save an untrained Llama of three layers; its responses end anywhere."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    special = {"pad_token_id": CHAIN.pad, "bos_token_id": CHAIN.bos, "eos_token_id": CHAIN.eos}
    vocabulary = CHAIN.first_operation + CHAIN.n_operations
    folder = tmp_path_factory.mktemp("packed") / "start"
    LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, **special)).save_pretrained(folder)
    return folder


@pytest.fixture
def model(folder):
    return LlamaForCausalLM.from_pretrained(folder)


def ragged_task(limit=24):
    """Return a task whose prompts have different lengths."""
    return SimpleNamespace(
        pad=CHAIN.pad,
        eos=CHAIN.eos,
        limit=limit,
        prompts=lambda problems: [
            CHAIN.prompts([problem])[0][-2 - problem[0] % 4 :] for problem in problems
        ],
    )


def draw(model, kind=PackedRollouts, groups=5, **changes):
    generator = torch.Generator().manual_seed(1)
    problems = [p for p in CHAIN.draw(groups, generator) for _ in range(N_PER_GROUP)]
    return problems, sample(model, ragged_task(**changes), problems, generator, kind)


def as_plain(rollouts):
    return Rollouts(*rollouts[:8])


def test_logits_match_passes_of_single_responses(model):
    _, packed = draw(model)
    lengths = packed.mask_BT.sum(1)
    assert len(set(lengths.tolist())) > 3 and not packed.prompt_mask_BP.all()
    with torch.no_grad():
        expected_NV = as_plain(packed).logits(model)
        torch.testing.assert_close(packed.logits(model), expected_NV, atol=1e-5, rtol=1e-4)
        old_BT = as_plain(packed).log_probs(expected_NV)
    torch.testing.assert_close(packed.old_BT, old_BT, atol=1e-5, rtol=1e-4)


def test_kept_layers_change_no_logits_of_any_rows(model):
    _, packed = draw(model)
    train_last_layers(model, 0.33)
    kept = packed.keep_frozen_layers(model)
    rows = torch.tensor([7, 1, 8, 14])
    with torch.no_grad():
        for one, other in ((kept, packed), (kept.rows(rows), as_plain(packed).rows(rows))):
            torch.testing.assert_close(one.logits(model), other.logits(model), atol=1e-5, rtol=1e-4)
    # The first layers are not computed again.
    model.get_decoder().layers[0].register_forward_hook(lambda *_: pytest.fail("computed"))
    kept.logits(model)


def test_the_sampler_draws_what_a_loop_without_a_cache_draws(model):
    problems, packed = draw(model, limit=12)
    task = ragged_task(12)
    generator = torch.Generator().manual_seed(1)
    CHAIN.draw(5, generator)
    number_TB = torch.stack([torch.rand(len(problems), generator=generator) for _ in range(12)])
    for row, prompt in enumerate(task.prompts(problems)):
        tokens = []
        while len(tokens) < 12 and task.eos not in tokens:
            with torch.no_grad():
                logits_V = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            cumulative_V = logits_V.softmax(-1).cumsum(-1)
            tokens.append(int((cumulative_V <= number_TB[len(tokens), row]).sum()))
        assert packed.response_BT[row][packed.mask_BT[row]].tolist() == tokens
        assert (packed.response_BT[row, len(tokens) :] == task.pad).all()


@pytest.mark.parametrize("method", METHODS)
def test_steps_of_training_match_the_plain_ones(folder, method):
    changes = {"rollout.prompts": 6, "actor.mini_batches": 1, "actor.lr": 1e-2, "prm.lr": 1e-2}
    changes |= {"prm.mini_batch_size": 8, "prm.lr_warmup_steps": 1, "actor.lr_warmup_steps": 1}
    trainers = []
    for sampler in (sample, lambda *options: Rollouts(*sample(*options)[:4])):
        trainer = StudyTrainer(CHAIN, build_settings(method, changes), 0, folder)
        trainer.sample = sampler
        # An untrained model solves no chain, and a PRM needs both outcomes.
        trainer.task.verify = lambda problems, response_BT: (response_BT[:, 0] % 2).float()
        trainer.gate.start = 0.8
        for learner in filter(None, (trainer.policy, trainer.prm)):
            learner.optimizer.param_groups[0]["eps"] = EPS
        if trainer.prm:
            # Scores of equal models are ties, which rounding would break.
            torch.manual_seed(0)
            weight = trainer.prm.model.get_decoder().layers[-1].mlp.down_proj.weight
            weight.data += 0.05 * torch.randn(weight.shape)
        for _ in range(2):
            trainer.step()
        trainers.append(trainer)
    packed, plain = trainers
    assert packed.shares.keys() == plain.shares.keys()
    for name, values in packed.shares.items():
        torch.testing.assert_close(
            torch.tensor(values), torch.tensor(plain.shares[name]), atol=1e-5, rtol=1e-4
        )
    for learner in ("policy", "prm"):
        if getattr(plain, learner):
            for one, other in zip(
                *(getattr(trainer, learner).model.parameters() for trainer in trainers), strict=True
            ):
                torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_prompts_whose_outcomes_are_equal_are_left_out(model):
    _, packed = draw(model)
    packed = packed._replace(outcome_B=torch.tensor([1.0, 1, 1] + [0, 1, 0] + [0, 0, 0] * 3))
    kept = keep_mixed(packed)
    assert type(kept) is PackedRollouts and kept.group_B.tolist() == [1, 1, 1]
    assert torch.equal(kept.response_BT, packed.response_BT[3:6])
    assert keep_mixed(packed.rows(torch.arange(6, 15))).outcome_B.tolist() == [0.0] * 9


def test_bfloat16_is_in_products_only(model):
    problems, mixed = draw(model, MixedRollouts)
    again = MixedRollouts(*mixed[:8]).rows(torch.arange(6))
    assert type(again) is MixedRollouts and mixed.old_BT.dtype == torch.float32
    logits_NV = again.logits(model)
    assert logits_NV.dtype == torch.bfloat16
    expected_NV = PackedRollouts(*again[:8]).logits(model)
    assert (logits_NV - expected_NV).abs().max() < 0.05 * expected_NV.abs().max()
    again.log_probs(logits_NV).sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


# ---- sums ----


@pytest.fixture
def sums(tmp_path):
    pytest.importorskip("reasoning_gym")
    write_model(tmp_path / "model")
    return SumTask(str(tmp_path / "model"), "max_digits=1", 99, train=8, demonstrations=8)


def as_rollouts(task, problems, texts):
    rows = [torch.tensor([*task.encoder.plain(text), task.eos]) for text in texts]
    response_BT = torch.nn.utils.rnn.pad_sequence(rows, True, task.pad)
    mask_BT = torch.arange(response_BT.shape[1]) < torch.tensor([[len(row)] for row in rows])
    prompts = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in task.prompts(problems)], True, task.pad, "left"
    )
    return PackedRollouts(prompts, prompts != task.pad, response_BT, mask_BT)


@pytest.mark.slow
def test_demonstrations_solve_their_problems(sums):
    problems = sums.demonstrated
    assert len(problems) == 8 and not {gold for _, gold in problems} & {
        gold for rows in sums.rows.values() for _, gold in rows
    }
    texts = [demonstrate(get_terms(gold)) for _, gold in problems]
    rollouts = as_rollouts(sums, problems, texts)
    assert sums.verify(problems, rollouts.response_BT).tolist() == [1.0] * 8
    label_BT, is_end_BT = label_steps(sums, rollouts)
    assert is_end_BT.sum(1).tolist() == [text.count("\n") for text in texts]
    assert torch.equal(label_BT.bool(), is_end_BT)


@pytest.mark.parametrize(
    ("response", "labels"),
    [
        ("4 - 1 = 3\n3 + 7 = 10\n", [1, 1]),
        ("4 - 1 = 2\n2 + 7 = 9\n", [0, 1]),
        ("4 - 1 = 3\n2 + 7 = 9\n\\boxed{9}", [1, 0]),
        ("4 + 7 = 11\n", [0]),
        ("so\n+ = x\n1\n2\n", [0, 0]),
        ("", []),
    ],
)
def test_a_line_is_labeled_by_the_result_before_it(response, labels):
    task = object.__new__(SumTask)
    task.encoder = TextEncoder(byte_tokenizer())
    task.pad = task.eos = 1
    gold = repr(
        {
            "task": "chain_sum",
            "parameters": {},
            "answer": "10",
            "metadata": {"expression": "4 - 1 + 7"},
        }
    )
    label_BT, is_end_BT = label_steps(task, as_rollouts(task, [([], gold)], [response]))
    assert label_BT[is_end_BT].tolist() == labels


def test_scores_of_a_step_are_summed_from_the_end_of_the_last():
    score_BT = torch.tensor([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0, 64.0, 128.0]])
    is_end_BT = torch.tensor([[False, True, False, True], [True, True, False, False]])
    assert sum_steps(score_BT, is_end_BT).tolist() == [3.0, 12.0, 16.0, 32.0]
