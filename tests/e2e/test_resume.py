# SPDX-License-Identifier: Apache-2.0
"""A run killed while it saves goes on as the run left alone, and can be exported.

It is PRIME-D with all that its PRM can be trained on: the average of the policy, the gate and the
PRM's bias go on, too. PSPO-WRS: tests/recipes/test_pspo_cpu.py.
"""

import subprocess

import e2e_harness as harness
import pytest
import torch
from e2e_harness import weights
from forked_workers import python
from page_reader import read_responses
from transformers import AutoModelForCausalLM

from prime_ext.generate.prm_description import read_description
from prime_ext.transcripts.__main__ import main
from prime_ext.transcripts.files import find_folder, find_steps, read_step
from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow

STEPS = 3
OVERRIDES = [
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.max_actor_ckpt_to_keep=2",
    # In float32 the rounding of a batch can move a token over its interval's boundary.
    "actor_rollout_ref.rollout.dtype=float64",
    "variant=distilled",
    # Open from the start: both pulls are at work.
    "prime.process.gate.start=0.8",
    "prm.epochs=2",
    "prm.reference=frozen",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return folders of the run left alone (verl's command) and of its resumed copy."""
    base = tmp_path_factory.mktemp("resume")
    inputs = base / "inputs"
    harness.write_inputs(inputs)
    alone = base / "alone"
    copy = base / "copy"
    stock = {"overrides": OVERRIDES, "module": "verl.trainer.main_ppo"}
    harness.run_copied_while_saving(inputs, alone, copy, whole=1, torn=2, **stock)
    harness.run(inputs, copy, OVERRIDES)
    return alone, copy


def test_a_resumed_run_ends_as_the_one_left_alone(runs):
    log = (runs[1] / "log.txt").read_text(errors="replace")
    assert f"going on from step 1 ({runs[1]}/checkpoints/global_step_1)" in log
    harness.assert_same_end(*runs, STEPS, ("actor", "prm", "policy_average"))
    biases = [
        read_json(folder / "checkpoints" / f"global_step_{STEPS}" / "prm" / "bias.json")
        for folder in runs
    ]
    assert biases[0] == biases[1] and biases[0]["bias"] != 0


def test_transcripts_go_on_and_their_page_shows_both_pulls(runs):
    # The dropped prompts that are recorded are the first that finished.
    for step in (1, STEPS):
        alone, other = (
            [row for row in read_step(find_folder(folder), step) if "advantage" in row]
            for folder in runs
        )
        assert len(alone) == len(other) > 8
        for one, two in zip(alone, other, strict=True):
            assert (one["key"], one["tokens"]) == (two["key"], two["tokens"])
            for name in ("process", "advantage", "return"):
                assert one[name] == pytest.approx(two[name], rel=1e-4, abs=1e-5)
    assert [find_steps(find_folder(folder)) for folder in runs] == [[1, STEPS]] * 2
    assert main([str(runs[1])]) == 0
    page = (runs[1] / "transcripts.html").read_text()
    gate = harness.metrics(runs[1])[STEPS]["prime/gate/value"]
    assert f"<dt>gate</dt><dd>{gate:.4g}</dd>" in page and "variant distilled" in page
    shown = [one for one in read_responses(page) if any(one.numbers("advantage"))]
    for row, response in zip(other, shown, strict=True):
        numbers = [float(one) for one in response.numbers("process reward") if one]
        assert numbers == pytest.approx(row["process"], rel=1e-3)


def test_both_pulls_are_in_the_loss(runs):
    for step, metrics in harness.metrics(runs[0]).items():
        gate = metrics["prime/gate/value"]
        assert 0 < gate < 1
        assert metrics["prime/kl/prm_coefficient"] == pytest.approx(gate)
        assert metrics["prime/kl/average_coefficient"] == pytest.approx(1 - gate)
        # The first update of the PRM has the learning rate 0.
        assert metrics["prime/kl/prm"] > 0 or step == 1
        assert metrics["prime/kl/average"] >= 0
        assert "prime/process/return_std" not in metrics


@pytest.mark.parametrize("part", ["actor", "prm"])
def test_the_final_models_are_exported_unchanged(runs, part, tmp_path):
    checkpoint = runs[1] / "checkpoints" / f"global_step_{STEPS}"
    command = [
        python(),
        "-m",
        "prime_ext.generate.export",
        str(checkpoint / part),
        str(tmp_path / "exported"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    saved = weights(checkpoint, part)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, saved[f"['model']['{name}']"], rtol=0, atol=0, msg=name)
    if part == "prm":
        said = read_description(str(tmp_path / "exported"))
        assert said["reference_mode"] == "frozen" and said["beta"] > 0
        assert (
            AutoModelForCausalLM.from_pretrained(said["reference"]).config.hidden_size
            == model.config.hidden_size
        )


def test_old_checkpoints_stay_until_a_new_one_is_whole(runs):
    for folder in runs:
        kept = sorted(path.name for path in (folder / "checkpoints").glob("global_step_*"))
        assert kept == ["global_step_2", f"global_step_{STEPS}"]
        assert all(
            (folder / "checkpoints" / name / "prime_ext_complete.json").exists() for name in kept
        )


def test_both_models_learn_without_undecided_rollouts(
    runs,
):
    metrics = harness.metrics(runs[0])
    assert metrics[1]["prm/loss"] == pytest.approx(0.6931, abs=0.02)
    assert sum(step["verifier/failure_rate"] for step in metrics.values()) > 0
    for step in metrics.values():
        assert step["actor/grad_norm"] > 0 and step["prm/grad_norm"] > 0
        assert step["training/rollout_probs_diff_max"] < 1e-5
        assert step["verifier/timeout"] == step["verifier/failure_rate"]
        assert step["verifier/correct"] + step["verifier/wrong"] + step[
            "verifier/timeout"
        ] == pytest.approx(1)
        assert step["prime/filter/kept"] == 4
