# SPDX-License-Identifier: Apache-2.0
"""Model cards, the scorer in them, and the upload."""

import math
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from prime_ext.generate import export
from prime_ext.generate.model_card import card_text, prm_description
from recipes.quickstart.evaluate import HeldOutProblem, Response
from recipes.quickstart.model import build_model
from recipes.quickstart.process_scores import score_response
from recipes.quickstart.tokenizer import build_tokenizer

RUN = {
    **{"prime_ext": "0.1.0", "verl": "0.9.1", "variant": "distilled", "step": 80, "policy": "org/sft"},
    **{"data": "train.parquet", "prm": "org/sft", "reference": "org/sft", "reference_mode": "frozen"},
    **{"reference_moves": False},
    **{"loss": "ce", "beta": 0.5, "metrics": {"prm/pair_accuracy/before_update": 0.75}},
}
BIAS = {"beta": 0.5, "bias": -0.25}


def save(folder, seed):
    build_model(build_tokenizer(), seed).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return str(folder)


def test_it_says_where_a_model_comes_from():
    policy, prm = card_text("actor", RUN, None), card_text("prm", RUN, BIAS)
    assert yaml.safe_load(policy.split("---")[1])["tags"] == ["reinforcement-learning"]
    assert "variant distilled, step 80" in policy and "0.750" in policy and "beta" not in policy
    assert "b = -0.25" in prm and "`org/sft` (`prm.reference=frozen`)" in prm
    assert "orders responses" in card_text("prm", RUN, None) and card_text("prm", None, None) is None
    assert "not known" in card_text("prm", None, BIAS)


def test_a_logit_is_promised_only_where_the_reference_was_one_model():
    moved = {**RUN, "reference_mode": "policy", "reference_moves": True}
    assert "sigmoid" in card_text("prm", RUN, BIAS) and "sigmoid" not in card_text("prm", moved, BIAS)
    assert prm_description(RUN, BIAS, Path())["bias"] == -0.25 and prm_description(moved, BIAS, Path())["bias"] is None


@pytest.mark.parametrize("reference", ["reference", "none"])
def test_the_scorer_of_the_card_runs_as_it_stands_and_gives_the_rewards_of_the_report(
    tmp_path, monkeypatch, capsys, reference
):
    places = [save(tmp_path / name, seed) for seed, name in enumerate(("prm", "reference"))]
    other = places[1] if reference == "reference" else "none"
    text = card_text("prm", {**RUN, "prm": places[1], "reference": other}, None, tmp_path / "prm")
    assert str(tmp_path) not in text
    code = text.split("```python\n")[1].split("```")[0].replace("What is 1 + 1?", "1+1?")
    names = {}
    monkeypatch.chdir(places[0])
    exec(compile(code, "card", "exec"), names)
    assert capsys.readouterr().out.strip() in ("2", "3")
    problem, answer = HeldOutProblem("3*9+6?", "3"), "3*9=7;\\boxed{3}"
    rewards = names["token_rewards"]([{"role": "user", "content": problem.prompt}], answer)

    tokenizer = AutoTokenizer.from_pretrained(places[0])
    prm, start = (AutoModelForCausalLM.from_pretrained(place).eval() for place in places)
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    scored = score_response(prm, start, tokenizer, problem, Response(ids, answer, True), RUN["beta"])
    own = [RUN["beta"] * token.log_prob_prm if other == "none" else token.reward for token in scored.tokens]
    assert torch.allclose(rewards, torch.tensor(own), atol=1e-6)
    assert math.isfinite(float(rewards.sum())) and float(rewards.abs().sum()) > 0


@pytest.fixture
def exported(tmp_path, monkeypatch):
    folder = tmp_path / "out"

    def write(checkpoint, output, dtype):
        output.mkdir()
        (output / "README.md").write_text("card")

    monkeypatch.setattr(export, "find_checkpoint", lambda folder, role: folder)
    monkeypatch.setattr(export, "export", write)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["export", str(tmp_path), str(folder), *words])
        export.main()

    return run


def test_a_dry_run_names_the_files_and_uploads_nothing(exported, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: pytest.fail("asked the hub"))
    exported("--push", "me/prm", "--dry-run")
    assert capsys.readouterr().out.endswith("  README.md  4 bytes\nme/prm: 1 files would be uploaded\n")


def test_an_upload_is_private_unless_asked_and_its_failure_is_one_line(exported, monkeypatch, capsys):
    calls = []

    class Hub:
        def create_repo(self, name, private, exist_ok):
            calls.append((name, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            raise OSError("401 Unauthorized\nlong text")

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    with pytest.raises(SystemExit, match="is exported, but was not uploaded to me/prm: 401 Unauthorized$"):
        exported("--push", "me/prm")
    assert calls == [("me/prm", True, True)]


@pytest.mark.parametrize("words", [["--dry-run"], ["--public"], ["--push", "prm"]])
def test_words_that_make_no_sense_are_refused(exported, words):
    with pytest.raises(SystemExit, match="2"):
        exported(*words)
