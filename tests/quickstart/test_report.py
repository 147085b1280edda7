# SPDX-License-Identifier: Apache-2.0
"""Evaluation and report of the quickstart."""

import json
import math
from html.parser import HTMLParser

import pytest
import torch
from omegaconf import OmegaConf

from prime_ext.config.compose import compose_config
from prime_ext.run.metrics_file import put_aside
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import read_json, write_json
from recipes.quickstart.data import write_data
from recipes.quickstart.evaluate import HeldOutProblem, Response, evaluate, grade, load_problems, respond, table
from recipes.quickstart.learning_curve import METHODS
from recipes.quickstart.model import build_model
from recipes.quickstart.process_scores import (
    ScoredResponse,
    ScoredStep,
    ScoredToken,
    locate_steps,
    response_log_probs,
    score_responses,
    step_statistics,
)
from recipes.quickstart.report import kept_runs, report, text
from recipes.quickstart.tokenizer import build_tokenizer
from recipes.quickstart.transcripts import render
from recipes.run_statistics import read_seconds, run_metrics


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return build_model(tokenizer, seed=0).eval()


def held_out(count, seed=0):
    return [
        HeldOutProblem(problem.prompt, str(problem.answer)) for problem in task.generate_problems("test", count, seed)
    ]


def tokenised(tokenizer, text):
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Response(ids, text, finished=True)


# ------------------------------------------------------------------------------------------------------- evaluation
def test_right_responses_are_graded_100_percent():
    problems = held_out(50)
    graded = grade(problems, [Response([], task.solve(task.parse_prompt(p.prompt)), True) for p in problems])
    assert graded["accuracy"] == graded["steps_right"] == graded["finished"] == 1.0
    assert graded["standard_error"] == 0.0
    assert graded["outcomes"] == "1" * 50
    assert sum(group["n"] for group in graded["by_chain_length"].values()) == graded["n"] == 50


def test_grades_count_answers_and_steps_apart():
    problems = [HeldOutProblem("3*9+6?", "3"), HeldOutProblem("3*9+6-1?", "2")]
    texts = {r"3*9=8;8+6=4;\boxed{4}": True, r"3*9=7;7+6=3;3-1=2;\boxed{2}": False}
    graded = grade(problems, [Response([], text, finished) for text, finished in texts.items()])
    assert (graded["accuracy"], graded["outcomes"], graded["finished"]) == (0.5, "01", 0.5)
    assert graded["standard_error"] == pytest.approx(math.sqrt(0.25 / 2))
    assert (graded["steps_right"], graded["steps_shown"]) == (4 / 5, 5)
    assert {length: group["accuracy"] for length, group in graded["by_chain_length"].items()} == {"2": 0.0, "3": 1.0}


def test_responses_depend_on_the_seed_alone(model, tokenizer):
    problems = held_out(4)
    first = respond(model, tokenizer, problems, temperature=1.0, seed=1)
    assert first == respond(model, tokenizer, problems, temperature=1.0, seed=1)
    assert first[:2] == respond(model, tokenizer, problems[:2], temperature=1.0, seed=1)
    assert first != respond(model, tokenizer, problems, temperature=1.0, seed=2)


# --------------------------------------------------------------------------------------------------- process scores
def test_log_probs_are_those_of_each_sequence_alone(model, tokenizer):
    prompts = [tokenizer("<bos>3*9+6?")["input_ids"], tokenizer("<bos>1+1-2*7+4?")["input_ids"]]
    responses = [tokenised(tokenizer, r"3*9=7;\boxed{7}").token_ids, tokenised(tokenizer, r"\boxed{1}").token_ids]
    log_prob_BT, mask_BT = response_log_probs(model, prompts, responses)
    assert mask_BT.sum(-1).tolist() == [len(response) for response in responses]
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        expected = [float(logits[len(prompt) + t - 1, token]) for t, token in enumerate(response)]
        assert log_prob_BT[row, : len(response)].tolist() == pytest.approx(expected, abs=1e-5)


def test_an_untrained_prm_gives_no_reward(model, tokenizer):
    problems = held_out(3)
    responses = [tokenised(tokenizer, task.solve(task.parse_prompt(problem.prompt))) for problem in problems]
    for scored in score_responses(model, model, tokenizer, problems, responses, beta=0.2):
        assert scored.right
        assert all(token.reward == 0.0 for token in scored.tokens)
        assert "".join(token.text for token in scored.tokens) == scored.text + "<eos>"


def test_rewards_are_beta_times_the_log_ratio(model, tokenizer):
    problems = held_out(1)
    responses = [tokenised(tokenizer, task.solve(task.parse_prompt(problems[0].prompt)))]
    prm = build_model(tokenizer, seed=1).eval()
    (scored,) = score_responses(prm, model, tokenizer, problems, responses, beta=0.5)
    for token in scored.tokens:
        assert token.reward == pytest.approx(0.5 * (token.log_prob_prm - token.log_prob_reference), abs=1e-5)
    assert scored.reward_sum != 0.0


def test_steps_are_found_among_the_tokens(tokenizer):
    response = tokenised(tokenizer, r"3*9=7;7+6=4;\boxed{4}")
    names = tokenizer.convert_ids_to_tokens(response.token_ids)
    steps = locate_steps("3*9+6?", response, ["" if name == "<eos>" else name for name in names])
    assert [(step.first_token, step.last_token, step.result_token) for step in steps] == [(0, 5, 4), (6, 11, 10)]
    assert [step.check.locally_right for step in steps] == [True, False]


def scored_response(prompt, text, rewards_of_results):
    """A response of single-character tokens with the given rewards on its result digits."""
    checks = task.check_steps(prompt, text)
    rewards = {check.result: reward for check, reward in zip(checks, rewards_of_results, strict=True)}
    tokens = [ScoredToken(character, rewards.get(index, 0.0), -1.0, -1.0) for index, character in enumerate(text)]
    steps = [ScoredStep(check, check.start, check.start + len(check.text), check.result) for check in checks]
    return ScoredResponse(HeldOutProblem(prompt, "3"), text, False, tokens, steps)


def test_step_statistics_of_a_prm_that_finds_the_mistake():
    good = scored_response("3*9+6?", r"3*9=7;7+6=4;\boxed{4}", [0.1, -0.5])
    statistics = step_statistics([good])
    assert (statistics["right_steps"], statistics["wrong_steps"], statistics["auc"]) == (1, 1, 1.0)
    assert (statistics["lowest_is_the_wrong_step"], statistics["chance"]) == (1.0, 0.5)
    blind = scored_response("3*9+6?", r"3*9=7;7+6=4;\boxed{4}", [-0.5, 0.1])
    assert step_statistics([blind])["lowest_is_the_wrong_step"] == step_statistics([blind])["auc"] == 0.0


# ------------------------------------------------------------------------------------------------------ transcripts
class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_data(self, data):
        self.text.append(data)


def test_hostile_text_is_shown_and_not_interpreted():
    hostile = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;"
    tokens = [ScoredToken(hostile, 0.1, -1.0, -1.5), ScoredToken("</span></div></main>", -0.1, -1.0, -0.5)]
    response = ScoredResponse(HeldOutProblem(hostile, hostile), hostile, False, tokens, [])
    page = render([(hostile, hostile, [response])], {hostile: step_statistics([response])}, beta=0.2)
    parser = Tags()
    parser.feed(page)
    assert {"script", "img"}.isdisjoint(parser.tags)
    assert not any(name.startswith("on") or name == "src" for name in parser.attributes)
    assert hostile in parser.text
    assert page.count("</main>") == 1


def test_wrong_steps_are_marked_and_explained():
    page = render([("a", "b", [scored_response("3*9+6?", r"3*9=7;7+6=4;\boxed{4}", [0.1, -0.5])])], {}, beta=0.2)
    cards = page[page.index("<section>") :]
    assert cards.count('class="step wrong"') == cards.count('class="step"') == 1
    assert "7+6 is 3, not 4" in cards
    assert "1 of 2 steps wrong" in cards


# ----------------------------------------------------------------------------------------------------------- report
def test_a_resumed_run_overrides_the_steps_it_repeats(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"data":{"a":1}}\n{"step":2,"data":{"a":2}}\n{"step":3,"da')
    put_aside(path)
    path.write_text('{"step":2,"data":{"a":20}}\n{"step":3,"data":{"a":30}}\n')
    assert run_metrics(tmp_path) == {1: {"a": 1}, 2: {"a": 20}, 3: {"a": 30}}


def test_a_run_without_metrics_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="file"):
        run_metrics(tmp_path)


def test_seconds_of_interrupted_phases_add_up(tmp_path):
    (tmp_path / "seconds.tsv").write_text("data\t5\nprime\t60\nprime\t40\n")
    assert read_seconds(tmp_path / "seconds.tsv") == {"data": 5.0, "prime": 100.0, "total": 105.0}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, tokenizer):
    """A finished run with untrained models."""
    folder = tmp_path_factory.mktemp("run")
    write_data(folder / "data", train_size=1, val_size=1, test_size=20, sft_size=1)
    for seed, name in enumerate(("sft", "policy", "prm")):
        build_model(tokenizer, seed).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for when, name in (("before", "sft"), ("after", "policy")):
        write_json(folder / f"evaluation_{when}.json", evaluate(folder / name, folder / "data" / "test.parquet"))
    rows = [
        {"step": step, "data": {"prime/accuracy/before_filter": 0.5, "prm/pair_accuracy/before_update": 0.6}}
        for step in (1, 2, 3)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "seconds.tsv").write_text("prime\t60\n")
    config = compose_config("prime_trainer_cpu", ["actor_rollout_ref.model.path=sft", "prime.whitening=false"])
    (folder / "hydra" / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / "hydra" / ".hydra" / "config.yaml")
    return folder


def test_the_report_writes_the_promised_files_and_keys(run_dir):
    summary = report(run_dir, beta=0.2, seed=7, settings={"STEPS": "3"})
    assert read_json(run_dir / "summary.json") == summary
    promised = {"accuracy_before", "accuracy_after", "standard_error", "n_problems", "steps", "seconds", "versions"}
    assert promised | {"seed", "settings", "greedy", "process_rewards"} <= summary.keys()
    assert summary["standard_error"].keys() == {"before", "after", "difference"}
    assert (summary["n_problems"], summary["steps"], summary["seed"]) == (20, 3, 7)
    assert summary["seconds"] == {"prime": 60.0, "total": 60.0}
    assert {"python", "torch", "verl", "transformers"} <= summary["versions"].keys()
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 3
    assert (run_dir / "transcripts.html").read_text().count('<div class="card') == 20 + 12
    assert "gain" in text(run_dir, summary)
    for label in METHODS.values():
        assert f"  {label}" in text(run_dir, summary)
    assert kept_runs({"PROMPTS": "16"}) is not None and kept_runs({"PROMPTS": "8"}) is None
    assert "of PRIME, variant distilled (changed: prime.whitening=false):\n" in text(run_dir, summary)


def test_the_evaluation_is_a_table_of_both_ways_of_decoding(run_dir):
    result = read_json(run_dir / "evaluation_before.json")
    assert result["n_problems"] == 20 == len(load_problems(run_dir / "data" / "test.parquet"))
    assert len(result["temperature_1"]["outcomes"]) == 20
    assert [line.split()[0] for line in table(result).splitlines()[1:]] == ["temperature", "greedy"]
