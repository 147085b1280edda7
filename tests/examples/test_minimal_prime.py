# SPDX-License-Identifier: Apache-2.0
"""examples/minimal_prime.py: its sampler, what methods train and leave alone, any causal model."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_llama import save_llama
from transformers import AutoModelForCausalLM, logging

from examples.minimal_prime import (
    METHODS,
    ChainTask,
    TextTask,
    Trainer,
    build_settings,
    main,
    sample,
    write_start,
)
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.tasks.rl_rows import MATH_SCHEMA, rl_row, write_rows

SMALL = {"rollout.prompts": 6, "actor.mini_batches": 2, "prm.mini_batch_size": 8, "actor.lr": 1e-3}


class Tiny(ChainTask):
    """Fifteen facts, which are imitated after seconds."""

    n_values = 5
    n_operations = 3
    first_operation = 9


TASK = Tiny(length=3)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("minimal") / "start"
    write_start(TASK, folder, steps=120, batch_size=32)
    return folder


def trainer(start, method, seed=0, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return Trainer(TASK, build_settings(method, SMALL | changes), seed, start)


def trained(start, method, steps=2, seed=0, gate=None, **changes):
    one = trainer(start, method, seed, **changes)
    one.gate = gate or one.gate
    for _ in range(steps):
        one.step()
    return one


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def start_weights(start):
    return weights(AutoModelForCausalLM.from_pretrained(start))


# ---- sampler ----


def sampled(start, seed, limit=8):
    """Return prompts of different lengths, so that left padding counts."""
    model = AutoModelForCausalLM.from_pretrained(start)
    drawn = []
    model.register_forward_hook(lambda module, inputs, output: drawn.append(output.logits[:, -1]))
    generator = torch.Generator().manual_seed(seed)
    prompts = [row[: 2 + k % 4] for k, row in enumerate(TASK.prompts(TASK.draw(64, generator)))]
    task = SimpleNamespace(
        pad=TASK.pad, eos=TASK.eos, limit=limit, prompts=lambda problems: problems
    )
    return model, sample(model, task, prompts, generator), torch.stack(drawn, 1).clone()


def test_logits_with_the_cache_are_those_of_one_pass(start):
    model, rollouts, cached_BTV = sampled(start, 0)
    assert not rollouts.prompt_mask_BP.all()
    with torch.no_grad():
        full_NV = rollouts.logits(model)
    valid_BT = rollouts.mask_BT[:, : cached_BTV.shape[1]]
    torch.testing.assert_close(cached_BTV[valid_BT], full_NV, atol=1e-5, rtol=1e-4)
    number = int(rollouts.mask_BT[:3].sum()) + 1
    by_hand = full_NV[number].log_softmax(-1)[rollouts.response_BT[3, 1]]
    log_prob_BT = rollouts.log_probs(full_NV)
    assert log_prob_BT[3, 1] == by_hand and not log_prob_BT[~rollouts.mask_BT].any()


def test_padding_on_the_left_changes_nothing(start):
    model, rollouts, _ = sampled(start, 1)
    alone = rollouts.rows(torch.tensor([0]))
    short_BP = alone.prompt_BP[alone.prompt_mask_BP][None]
    assert short_BP.shape[1] < alone.prompt_BP.shape[1]
    bare = alone._replace(
        prompt_BP=short_BP, prompt_mask_BP=torch.ones_like(short_BP, dtype=torch.bool)
    )
    with torch.no_grad():
        logits = [one.logits(model) for one in (alone, bare)]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-4)


def test_a_response_ends_at_an_end_token_or_the_limit(start):
    _, rollouts, _ = sampled(start, 2, limit=12)
    is_end_BT = rollouts.response_BT == TASK.eos
    for tokens, end, mask in zip(rollouts.response_BT, is_end_BT, rollouts.mask_BT, strict=True):
        length = int(end.nonzero()[0]) + 1 if end.any() else 12
        assert (
            mask.tolist() == [t < length for t in range(12)] and (tokens[length:] == TASK.pad).all()
        )
    assert is_end_BT.any() and sampled(start, 2, limit=1)[1].mask_BT.all()


# ---- methods ----


@pytest.mark.parametrize("method", METHODS)
def test_two_steps_of_every_method(start, start_weights, method):
    one = trained(start, method)
    assert not torch.equal(weights(one.policy.model), start_weights) and one.rollouts == 2 * 6 * 4
    assert weights(one.policy.model).isfinite().all()
    assert (one.prm is not None) == (method in ("paper", "guarded", "distilled"))
    assert (one.average is not None) == (method in ("rloo_ema", "distilled"))
    if one.prm:
        assert not torch.equal(weights(one.prm.model), start_weights)
        assert one.reference is None or torch.equal(weights(one.reference), start_weights)
        assert (one.prm.bias != 0) == one.settings["prm.bias"]


@pytest.mark.parametrize("method", ["distilled", "guarded"])
def test_a_seed_gives_the_same_bits_again(start, method):
    first, second, other = (
        weights(trained(start, method, seed=seed).policy.model) for seed in (3, 3, 4)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)


@pytest.mark.parametrize(("method", "same_as"), [("distilled", "rloo_ema"), ("guarded", "rloo")])
def test_with_a_shut_gate_the_prm_has_no_say(start, method, same_as):
    """A weight of 1 for the past keeps the gate where it starts: shut."""
    shut = trained(start, method, steps=3, gate=ReliabilityGate(decay=1.0))
    assert torch.equal(
        weights(shut.policy.model), weights(trained(start, same_as, steps=3).policy.model)
    )
    assert [gate for gate, _ in shut.shares["gate"]] == [0.0] * 3


def test_the_paper_scores_before_learning_and_prime_d_after_it(start):
    paper = trainer(start, "paper", prm__mini_batch_size=24)
    batch = paper.collect()
    # One mini-batch, so that all were scored by the start; only rounding is left.
    assert paper.learn_and_score(batch)[1][0].abs().max() < 1e-5
    assert paper.learn_and_score(batch)[1][0].abs().max() > 1e-4
    distilled = trainer(start, "distilled")
    assert distilled.learn_and_score(distilled.collect())[1][0].abs().max() > 1e-4
    # The gate sees rollouts that the PRM has not learned from: one that equals its reference ties
    # all pairs.
    right, total = distilled.shares["pair_accuracy"][0]
    assert total > 0 and right == total / 2


def test_layers_that_are_not_trained_stay_as_they_are(start):
    before = dict(AutoModelForCausalLM.from_pretrained(start).named_parameters())
    for name, parameter in trained(start, "distilled").prm.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("layers.1." not in name), name


# ---- other models, and the command ----


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.parquet"
    made = []
    for k in range(9):
        question = [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": f"{10**k} + 1"},
        ]
        made.append(
            rl_row("mine", question, "math", f"{10**k + 1}", {"split": "train", "index": k})
        )
    write_rows(path, MATH_SCHEMA, made)
    return path


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}<{{ m['content'] }}>{% endfor %}", None]
)
def test_any_causal_model_learns_from_rows_of_text(tmp_path, rows, template):
    model = str(save_llama(tmp_path / "model", chat_template=template))
    task = TextTask(model, str(rows), 12)
    (held_out,) = task.draw(1, torch.Generator(), held_out=True)
    assert task.held_out == 4 and held_out not in task.draw(9, torch.Generator())
    text = task.encoder.tokenizer.decode(task.prompts([held_out])[0])
    assert text == (
        f"<Add.><{held_out[0][1]['content']}>" if template else held_out[0][1]["content"]
    )
    answers = task.encoder.tokenizer(
        [rf"\boxed{{{held_out[1]}}}", r"\boxed{3}"], padding=True, return_tensors="pt"
    )
    assert task.verify([held_out] * 2, answers["input_ids"]).tolist() == [1, 0]
    one = Trainer(task, build_settings("distilled", SMALL | {"rollout.prompts": 2}), 0, model)
    assert [point["rollouts"] for point in one.train(16, every=8)] == [0, 8, 16]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prm.lrr=2"], "key must be |got 'prm.lrr'; did you mean prm.lr?"),
        (["prm.beta"], "prm.beta|must be a valid number"),
        (["rollout.n=2", "rollout.n=8.5"], "rollout.n|must be a valid integer"),
        (["rollout.n=0"], "rollout.n|must be greater than or equal to 1"),
        (["prime.process.form=sum"], "prime.process.form|'tokens' or 'kl'"),
        (["--method", "papper"], "'guarded' or 'distilled'|'papper'"),
        (["--model", "nowhere", "no.parquet"], "no.parquet does not exist"),
    ],
)
def test_bad_arguments_end_in_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["minimal_prime", *words, "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        main()
    said = str(stop.value)
    assert (
        said.startswith("error: ")
        and "\n" not in said
        and all(part in said for part in message.split("|"))
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_file_is_short_and_imports_no_verl_or_ray():
    code = "import sys, recipes.studies.run; print(sorted({'verl', 'ray'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )
    source = Path(sys.modules[ChainTask.__module__].__file__).read_text()
    assert len(source.splitlines()) <= 450
