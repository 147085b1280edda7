# SPDX-License-Identifier: Apache-2.0
"""The quickstart: data for verl, tokenizer, model, warm start, evaluation, token scores, report."""

import json
import math
import random
import re
import statistics
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.tokenizer.chat_template import extract_system_prompt_and_generation

from prime_ext.config.compose import compose_config
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import read_json, write_json, write_json_lines
from recipes.quickstart import demonstrators
from recipes.quickstart.evaluate import (
    EvaluatedResponse,
    HeldOutProblem,
    Piece,
    RewardedResponse,
    evaluate,
    grade,
    load_model,
    respond,
    score_response,
    step_statistics,
)
from recipes.quickstart.quickstart_data import write_data
from recipes.quickstart.quickstart_report import LABELS, format_report, report
from recipes.quickstart.quickstart_sft import IGNORED_LABEL, draw_batches, examples, train
from recipes.quickstart.small_model import VOCABULARY, build_model, build_tokenizer

ROOT = Path(__file__).parents[2]
QUESTION = "3*9+6?"
ANSWER = r"3*9=7;7+6=3;\boxed{3}"
CONVERSATION = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
SIZES = {"train": 60, "val": 20, "test": 40, "sft": 300}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Make a finished run with hardly trained models."""
    folder = tmp_path_factory.mktemp("run")
    write_data(folder / "data", **{f"{split}_size": size for split, size in SIZES.items()})
    train(folder / "data" / "sft.parquet", folder / "sft", steps=2)
    for seed, name in enumerate(("policy", "prm"), start=1):
        build_model(build_tokenizer(), seed).save_pretrained(folder / name)
        build_tokenizer().save_pretrained(folder / name)
    for when, name in (("before", "sft"), ("after", "policy")):
        write_json(
            folder / f"evaluation_{when}.json",
            evaluate(folder / name, folder / "data" / "test.parquet"),
        )
    data = {"prime/accuracy/before_filter": 0.5, "prm/pair_accuracy/before_update": 0.6}
    write_json_lines(folder / "metrics.jsonl", [{"step": step, "data": data} for step in (1, 2, 3)])
    (folder / "seconds.tsv").write_text("prime\t60\n")
    config = compose_config(
        "prime_trainer_cpu", ["actor_rollout_ref.model.path=sft", "prime.whitening=false"]
    )
    (folder / "hydra" / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / "hydra" / ".hydra" / "config.yaml")
    return folder


@pytest.fixture(scope="module")
def tokenizer(run_dir):
    return AutoTokenizer.from_pretrained(run_dir / "policy")


@pytest.fixture(scope="module")
def model():
    return build_model(build_tokenizer(), seed=0).eval()


def chat_ids(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)


def tokenize(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return EvaluatedResponse([*ids, tokenizer.eos_token_id], text, True)


def test_rows_have_verls_schemas_and_no_prompt_comes_twice(run_dir):
    rows = {
        split: pq.read_table(run_dir / "data" / f"{split}.parquet").to_pylist() for split in SIZES
    }
    for split in ("train", "val", "test"):
        for index, row in enumerate(rows[split]):
            problem = task.parse_prompt(row["prompt"][0]["content"])
            assert row == {
                "data_source": "prime_ext/last_digit_chain",
                "prompt": [{"role": "user", "content": problem.prompt}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
                "extra_info": {"split": split, "index": index},
            }
    turns = [[message["content"] for message in row["messages"]] for row in rows["sft"]]
    right = [
        task.outcome_reward(answer, str(task.parse_prompt(question).answer))
        for question, answer in turns
    ]
    # Some demonstrations are wrong on purpose.
    assert 0.05 < sum(right) / len(right) < 0.6
    prompts = [
        row["prompt"][0]["content"] for split in ("train", "val", "test") for row in rows[split]
    ]
    prompts += [question for question, _ in turns]
    assert len(set(prompts)) == len(prompts) == sum(SIZES.values())
    assert read_json(run_dir / "data" / "data.json")["rows"] == SIZES


def test_the_chat_template_adds_only_bos_and_eos(tokenizer):
    assert len(tokenizer) == 21 and (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    prompt = chat_ids(tokenizer, CONVERSATION[:1], add_generation_prompt=True)
    assert prompt == [VOCABULARY.index(token) for token in ["<bos>", *QUESTION]]
    whole = chat_ids(tokenizer, CONVERSATION)
    assert tokenizer.convert_ids_to_tokens(whole) == [
        "<bos>",
        *QUESTION,
        *ANSWER[:12],
        "\\boxed{",
        "3",
        "}",
        "<eos>",
    ]
    # verl's SFT data set renders every turn alone, without what it takes for a system prompt.
    assert extract_system_prompt_and_generation(tokenizer) == ([], [])
    assert sum((chat_ids(tokenizer, [message]) for message in CONVERSATION), []) == whole
    (example,) = examples([CONVERSATION], tokenizer)
    assert example["input_ids"] == whole
    assert example["labels"] == [IGNORED_LABEL] * len(prompt) + whole[len(prompt) :]


def test_responses_round_trip_and_other_text_is_an_error(tokenizer):
    rng = random.Random(0)
    misconceptions = demonstrators.draw_misconceptions(0.25, 0)
    for problem in task.generate_problems("test", 50, seed=0):
        written = demonstrators.demonstrate(problem, misconceptions, rng)
        assert (
            tokenizer.decode(tokenize(tokenizer, written).token_ids, skip_special_tokens=True)
            == written
        )
    with pytest.raises(Exception, match="WordLevel"):
        tokenizer("3 * 9")


@pytest.mark.parametrize(
    ("within", "lengths"), [(1, [30] * 10 + [36] * 7), (8, [29, 30, 31, 32, 32] * 2 + [36] * 7)]
)
def test_batches_have_one_length_and_cover_the_data_every_epoch(within, lengths):
    batches = draw_batches(lengths, batch_size=3, count=7, seed=0, within=within)
    assert len(batches) == 7 and {len(batch) for batch in batches} == {3}
    assert all(len({-(-lengths[index] // within) for index in batch}) == 1 for batch in batches)
    assert len({index for batch in batches[:5] for index in batch}) == 15
    with pytest.raises(ValueError, match="too few"):
        draw_batches(lengths, batch_size=11, count=1, seed=0, within=within)


def test_grades_count_answers_and_steps_apart():
    problems = [HeldOutProblem(QUESTION, "3"), HeldOutProblem("3*9+6-1?", "2")]
    texts = {r"3*9=8;8+6=4;\boxed{4}": True, r"3*9=7;7+6=3;3-1=2;\boxed{2}": False}
    graded = grade(
        problems, [EvaluatedResponse([], text, finished) for text, finished in texts.items()]
    )
    assert (graded["accuracy"], graded["outcomes"], graded["finished"]) == (0.5, "01", 0.5)
    assert (
        graded["standard_error"] == pytest.approx(math.sqrt(0.25 / 2))
        and graded["steps_right"] == 4 / 5
    )


def test_responses_depend_on_the_seed_alone(model, tokenizer):
    problems = [
        HeldOutProblem(problem.prompt, "") for problem in task.generate_problems("test", 4, 0)
    ]
    first = respond(model, tokenizer, problems, temperature=1.0, seed=1)
    assert first[:2] == respond(model, tokenizer, problems[:2], temperature=1.0, seed=1)
    assert first != respond(model, tokenizer, problems, temperature=1.0, seed=2)


def test_rewards_are_beta_times_log_ratios_and_steps_are_judged(model, tokenizer):
    response = tokenize(tokenizer, r"3*9=7;7+6=4;\boxed{4}")
    prm = build_model(tokenizer, seed=1).eval()
    scored = score_response(
        prm, model, tokenizer, HeldOutProblem(QUESTION, "3"), response, beta=0.5
    )
    ids = chat_ids(tokenizer, CONVERSATION[:1]) + response.token_ids
    for place, piece in enumerate(scored.pieces, start=1 + len(QUESTION)):
        one, other = (
            m(torch.tensor([ids[:place]])).logits[0, -1].log_softmax(-1)[ids[place]]
            for m in (prm, model)
        )
        assert piece.reward == pytest.approx(0.5 * float(one - other), abs=1e-5)
    assert (
        "".join(piece.text for piece in scored.pieces) == response.text + "<eos>"
        and not scored.right
    )
    assert {place: p.right for place, p in enumerate(scored.pieces) if p.right is not None} == {
        4: True,
        10: False,
    }


def scored_response(*rewards, text="x"):
    """Return a wrong response whose first step is right and the second wrong."""
    pieces = [
        Piece(text, reward, right) for reward, right in zip(rewards, (True, False), strict=True)
    ]
    return RewardedResponse(HeldOutProblem(text, text), text, False, pieces)


@pytest.mark.parametrize(("rewards", "auc"), [((0.1, -0.5), 1.0), ((-0.5, 0.1), 0.0)])
def test_step_statistics_tell_a_good_prm_from_a_blind_one(rewards, auc):
    statistics = step_statistics([scored_response(*rewards)])
    assert (statistics["right_steps"], statistics["wrong_steps"], statistics["auc"]) == (1, 1, auc)
    assert statistics["mean_reward_right_step"] == rewards[0] and statistics["outcome_auc"] is None


def test_the_report_writes_the_promised_files_and_keys(run_dir):
    (run_dir / "settings.txt").write_text("SEED=7\nBETA=0.2\nPROMPTS=16\n")
    summary = report(run_dir)
    assert read_json(run_dir / "summary.json") == summary
    promised = {
        "accuracy_before",
        "accuracy_after",
        "standard_error",
        "n_problems",
        "steps",
        "seconds",
        "versions",
    }
    assert (
        promised | {"seed", "settings", "greedy", "process_rewards", "steps_right_after"}
        <= summary.keys()
    )
    assert (summary["n_problems"], summary["steps"], summary["seed"]) == (40, 3, 7)
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 3
    said = format_report(run_dir, summary)
    assert "gain" in said and all(f"  {label}" in said for label in LABELS.values())
    assert (
        "of PRIME-D, variant distilled (changed: prime.whitening=false), one seed (± standard error"
        " over pr" in said
    )
    # Stored runs are those of the task as it is.
    (run_dir / "settings.txt").write_text("SEED=7\nBETA=0.2\nPROMPTS=8\n")
    assert report(run_dir)["stored_runs"] == []


def test_the_readme_scores_steps_as_the_quickstart_does(run_dir, tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "quickstart").symlink_to(run_dir)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    (prm, tokenizer), (reference, _) = (load_model(run_dir / name) for name in ("prm", "sft"))
    rights = []
    for line in lines:
        answer, _, shown = line.partition(" ")
        question = HeldOutProblem("3*9+6*7*9+1?", "0")
        response = tokenize(tokenizer, answer)
        scored = score_response(prm, reference, tokenizer, question, response, beta=1.0)
        assert len(json.loads(shown)) == 5
        for step, reward in enumerate(json.loads(shown)):
            pieces = scored.pieces[6 * step : 6 * step + 6]
            assert reward == pytest.approx(sum(piece.reward for piece in pieces), abs=0.0501)
        rights.append([piece.right for piece in scored.pieces if piece.right is not None])
    # The first answers right; the second has one wrong step, and goes on from its value.
    assert rights == [[True] * 5, [True, False, True, True, True]]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/quickstart.md"])
def test_pages_have_the_numbers_of_the_stored_seeds(page):
    runs = read_json(ROOT / "recipes" / "quickstart" / "results" / "quickstart_seeds.json")["runs"]
    text = (ROOT / page).read_text()
    for decoding in ("temperature_1", "greedy"):
        cells = []
        for when in ("before", "after", "gain"):
            values = [100 * run[decoding][when] for run in runs]
            error = statistics.stdev(values) / len(values) ** 0.5
            span = f"{min(values):.1f} to {max(values):.1f}"
            cells.append(f"{statistics.mean(values):.1f} ± {error:.1f} ({span})")
        assert f"| {' | '.join([decoding.replace('_', ' '), *cells])} |" in text
