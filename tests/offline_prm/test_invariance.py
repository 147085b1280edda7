# SPDX-License-Identifier: Apache-2.0
"""Steps of no loss depend on ranks or micro-batches; those of cross-entropy equal a loop."""

import math
from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from offline_rank import RUNS
from tiny_prm import labeled_steps, response_rows, save_tiny_model, step_rows, write_jsonl

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "offline_rank.py"
BETA = 0.5
LN2 = math.log(2)
INITIAL = {"ce": LN2, "dpo": LN2, "kto": 0.5, "nca": 2 * LN2, "step_ce": LN2}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    save_tiny_model(folder / "model")
    responses = write_jsonl(folder / "responses.jsonl", response_rows(10))
    return (
        folder / "model",
        responses,
        write_jsonl(folder / "steps.jsonl", labeled_steps(step_rows(10))),
    )


@pytest.fixture(scope="module")
def results(inputs, tmp_path_factory):
    return run_ranks(PROGRAM, inputs, {n: tmp_path_factory.mktemp(f"ranks{n}") for n in (1, 2)})


def assert_same_run(found, expected):
    for step, other in zip(found["metrics"], expected["metrics"], strict=True):
        assert step["train/loss"] == pytest.approx(other["train/loss"], abs=2e-5)
        assert step["train/grad_norm"] == pytest.approx(
            other["train/grad_norm"], rel=1e-3, abs=1e-6
        )
        assert step["train/responses"] == other["train/responses"]
    # Before the first update all scores are zero up to rounding, and their order means nothing.
    for step, other in zip(found["metrics"][1:], expected["metrics"][1:], strict=True):
        assert step.get("train/pair_accuracy") == other.get("train/pair_accuracy")
    assert found["weights"].keys() == expected["weights"].keys()
    for name, weight in found["weights"].items():
        torch.testing.assert_close(weight, expected["weights"][name], atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", RUNS)
def test_ranks_and_passes_do_not_change_the_training(results, name):
    assert_same_run(results[2][name], results[1][name])
    assert_same_run(results[1][name], results[1][name.partition(",")[0]])


@pytest.mark.parametrize("name", INITIAL)
def test_the_loss_starts_untrained_and_falls_on_repeated_responses(results, name):
    first, _, again = (metrics["train/loss"] for metrics in results[1][name]["metrics"])
    assert first == pytest.approx(INITIAL[name], abs=1e-4) and again < first


def test_two_steps_of_cross_entropy_equal_a_plain_loop(results, inputs):
    """The first two optimizer steps of ``ce``, one response at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from prime_ext.utils.text_tokens import TextEncoder

    model, reference = (AutoModelForCausalLM.from_pretrained(inputs[0]) for _ in range(2))
    encoder = TextEncoder(AutoTokenizer.from_pretrained(inputs[0]))
    rows = response_rows(10)

    def log_prob_sum(network, prompt, response):
        ids = torch.tensor([*prompt, *response])
        table = network(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        return table[len(prompt) - 1 :].sum()

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0, eps=1e-3
    )
    # 10 prompts in steps of 4 are 2 steps; the schedule counts from one, without a warm-up.
    for number, groups in enumerate([[0, 1, 2], [3, 4, 5, 6]]):
        optimizer.param_groups[0]["lr"] = 1e-2 * (
            0.55 + 0.45 * math.cos(math.pi * (number + 1) / 2)
        )
        optimizer.zero_grad()
        losses = []
        for group in groups:
            prompt = encoder.prompt(rows[group]["prompt"])
            for text, correct in zip(
                rows[group]["completions"], rows[group]["correctness"], strict=True
            ):
                response = encoder.response(text)[0]
                h = (
                    log_prob_sum(model, prompt, response)
                    - log_prob_sum(reference, prompt, response).detach()
                )
                losses.append(torch.nn.functional.softplus((-1 if correct else 1) * BETA * h))
        loss = sum(losses) / len(losses)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        logged = results[1]["ce"]["metrics"][number]
        assert logged["train/loss"] == pytest.approx(float(loss), abs=2e-5)
        assert logged["train/grad_norm"] == pytest.approx(float(norm), rel=1e-3)
        assert logged["train/lr"] == pytest.approx(optimizer.param_groups[0]["lr"])
