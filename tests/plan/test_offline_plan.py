# SPDX-License-Identifier: Apache-2.0
"""The plan of offline training: what a step computes, how many there are, and whether it fits. No data, no weights."""

import json
from pathlib import Path

import pytest

from prime_ext.plan.offline_plan import main

MODELS = Path(__file__).resolve().parents[2] / "recipes" / "model_configs"
WORDS = ("model.path=Qwen/Qwen2.5-0.5B-Instruct", "data.train_files=no.parquet", f"--model-configs={MODELS}")


@pytest.fixture
def planned(capsys):
    def plan(*words):
        status = main([*WORDS, "--json", *words])
        return status, json.loads(capsys.readouterr().out)

    return plan


@pytest.mark.parametrize(
    ("loss", "passes"),
    [
        ("ce", {"reference": 2, "update": 8}),
        ("step_ce", {"reference": 2, "update": 8}),
        # Log-ratios of both models before the update.
        ("dpo", {"reference": 4, "scores before the update": 2, "update": 8}),
        ("kto", {"reference": 4, "scores before the update": 2, "update": 8}),
    ],
)
def test_a_loss_takes_its_passes(planned, loss, passes):
    _, plan = planned(f"prm.loss={loss}")
    assert {work["name"]: work["flops_per_token_and_weight"] for work in plan["work"]} == passes


def test_steps_follow_from_the_prompts_that_are_not_held_out(planned):
    _, plan = planned("--prompts=1000", "trainer.epochs=2", "data.prompts_per_step=8", "data.val_fraction=0.02")
    assert plan["facts"]["steps"] == 2 * (980 // 8)
    assert all(hours["run_hours"] > 0 for hours in plan["hours"])
    _, plan = planned()
    assert plan["facts"]["steps"] == "unknown; give --prompts"
    assert all(hours["run_hours"] is None and hours["step_seconds"] > 0 for hours in plan["hours"])


def test_devices_share_weights_and_states(planned):
    parts = [planned(f"--devices={devices}")[1]["memory"][0] for devices in (1, 4)]
    for column in ("weights", "gradients", "optimizer"):
        assert parts[0][column] == 4 * parts[1][column]
    # 494,032,768 weights in float32, and Adam's two states of each.
    assert parts[0]["weights"] == 4 * 494_032_768 and parts[0]["optimizer"] == 2 * parts[0]["weights"]


def test_hours_are_in_proportion_to_the_mean_length(planned):
    whole, half = (planned("--prompts=800", f"--mean-tokens={tokens}")[1]["hours"][0] for tokens in (8192, 4096))
    assert half["run_hours"] == pytest.approx(whole["run_hours"] / 2)


def test_what_does_not_fit_is_said_with_a_lever(planned):
    status, plan = planned("--device-memory=12")
    assert status == 1 and len(plan["warnings"]) == 1 and "try model.use_fused_kernels=true" in plan["warnings"][0]
    status, plan = planned("--device-memory=80")
    assert status == 0 and plan["warnings"] == [] and plan["not_here"] == ["no.parquet"]


def test_settings_that_cannot_work_are_one_line(capsys):
    assert main([*WORDS, "prm.loss=mse"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("prime_ext: prm.loss='mse' is not one of")
    assert main(["model.path=some/other-model", "data.train_files=no.parquet"]) == 2
    assert "model.path: some/other-model has no config.json" in capsys.readouterr().err
