# SPDX-License-Identifier: Apache-2.0
"""The CPU recipes of PSPO-WRS: task, data, measurement, report, phases of both quickstarts."""

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from forked_workers import python, with_forks
from logged_runs import run_logged
from page_reader import read_responses

from prime_ext.run.checkpoint import TRACKER
from prime_ext.run.metrics_file import read_metrics
from prime_ext.step_rm.description import PairEncoder, PairFormat
from prime_ext.step_rm.scorers.protocol import StepScores
from prime_ext.tasks.last_digit_chain import get_split, outcome_reward, parse_prompt
from prime_ext.transcripts.__main__ import main
from prime_ext.transcripts.files import find_folder, find_steps, read_step
from prime_ext.utils.files import read_json, write_json, write_json_lines
from recipes.pspo_wrs import measure, pspo_report
from recipes.pspo_wrs.pspo_data import (
    MAX_RESPONSE_LENGTH,
    OPERANDS,
    OPERATIONS,
    SUPERFLUOUS,
    USEFUL,
    WRONG,
    check_steps,
    compose_solution,
    generate_problems,
    token_count,
    write_data,
)
from recipes.pspo_wrs.step_rm import pair_tokenizer, train_step_rm, write_step_rm_start
from recipes.quickstart.demonstrators import draw_misconceptions
from recipes.quickstart.quickstart_sft import train
from recipes.quickstart.small_model import VOCABULARY, build_model, build_tokenizer

ROOT = Path(__file__).parents[2]
PROMPT = "8+2-1+2?"
U = USEFUL
S = SUPERFLUOUS
W = WRONG
CLOCKS = dict.fromkeys(("verifier_seconds", "scorer_seconds"))


# ---- the task ----


@pytest.mark.parametrize(
    ("response", "kinds"),
    [
        # Right solutions of different lengths.
        (r"8+2=0;0-1=9;9+2=1;\boxed{1}", [U, U, U]),
        (r"8+2-1=9;9+2=1;\boxed{1}", [U, U]),
        (r"8+2-1+2=1;\boxed{1}", [U]),
        (r"8+2=0;0=0;0=0;0-1=9;9+2=1;1=1;\boxed{1}", [U, S, S, U, U, S]),
        # A wrong result, value, operation, second operation or restatement; no step; unfinished.
        *(
            (text, [W])
            for text in (
                "8+2=1;",
                "7+2=9;",
                "8+1=9;",
                "8+2+1=1;",
                "8=9;",
                "9=9;",
                "nonsense;",
                "8+2=0",
            )
        ),
        # The answer too early; a space.
        *((text, [W]) for text in (r"8+2=0;\boxed{0}", "8 +2=0;")),
        # A step after a wrong one is judged by itself, and none comes after the last operation.
        (r"8+2=1;1-1=0;0+2=2;\boxed{2}", [W, U, U]),
        ("8+2=1;1=1;0=0;", [W, S, W]),
        ("8+2-1+2=1;1+2=3;", [U, W]),
        # The answer must be the result of the last step.
        (r"8+2-1=9;9+2=1;\boxed{2}", [U, W]),
        ("", []),
    ],
)
def test_steps_are_judged_given_what_stands_before_them(response, kinds):
    steps = check_steps(PROMPT, response)
    assert [step.kind for step in steps] == kinds and "".join(
        step.text for step in steps
    ) == response
    if W not in kinds and kinds:
        assert outcome_reward(response, "1") == 1.0


def solutions(slips=0.0, mean_error=0.0, count=300):
    misconceptions = draw_misconceptions(mean_error, 123)
    rng = random.Random(0)
    return [
        (p, compose_solution(p, misconceptions, rng, slips))
        for p in generate_problems("sft", count, 0)
    ]


def test_a_writer_without_misconceptions_is_right_at_any_length():
    tokenizer = build_tokenizer()
    counts = []
    for problem, solution in solutions():
        steps = check_steps(problem.prompt, solution)
        assert (
            WRONG not in [step.kind for step in steps]
            and outcome_reward(solution, str(problem.answer)) == 1.0
        )
        assert token_count(solution) == len(
            tokenizer(solution, add_special_tokens=False)["input_ids"]
        )
        counts.append(len(steps))
    assert 3.5 < sum(counts) / len(counts) < 5.5 and min(counts) <= 2 and max(counts) > 10


@pytest.mark.parametrize(("slips", "mean_error"), [(0.0, 0.15), (0.1, 0.0)])
def test_misconceptions_and_slips_make_wrong_steps(slips, mean_error):
    kinds = [
        step.kind
        for p, text in solutions(slips, mean_error)
        for step in check_steps(p.prompt, text)
    ]
    assert 0.05 < kinds.count(WRONG) / len(kinds) < 0.3


def test_problems_differ_and_keep_to_their_split():
    problems = generate_problems("test", 200, 0)
    assert len({problem.prompt for problem in problems}) == 200
    for problem in problems:
        assert parse_prompt(problem.prompt) == problem and get_split(problem.prompt) == "test"
        assert len(problem.operations) in OPERATIONS and all(
            operand in OPERANDS for _, operand in problem.operations
        )
    with pytest.raises(ValueError, match="too many for split 'test'"):
        generate_problems("test", 1000, 0)


# ---- data and step reward model ----


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder, train_size=30, val_size=10, test_size=20, sft_size=60, labeled_size=80)
    return folder


def get_rows(data, split):
    return pq.read_table(data / f"{split}.parquet").to_pylist()


def test_labeled_chains_use_new_problems_and_differ_in_superfluous_steps(data):
    seen = {
        row["prompt"][0]["content"]
        for split in ("train", "val", "test")
        for row in get_rows(data, split)
    }
    both = [
        (data / f"steps_{name}.jsonl").read_text().splitlines() for name in ("honest", "lenient")
    ]
    # Demonstrations fit into a response.
    demonstrations = [row["messages"][1]["content"] for row in get_rows(data, "sft")]
    assert (
        50 <= len(demonstrations) <= 60
        and max(map(token_count, demonstrations)) < MAX_RESPONSE_LENGTH
    )
    differences = 0
    for honest, lenient in zip(*(map(json.loads, lines) for lines in both), strict=True):
        assert honest["question"] not in seen
        assert (honest["question"], honest["steps"]) == (lenient["question"], lenient["steps"])
        kinds = [step.kind for step in check_steps(honest["question"], "".join(honest["steps"]))]
        for kind, first, second in zip(kinds, honest["labels"], lenient["labels"], strict=True):
            assert (first, second) == ((0, 1) if kind == SUPERFLUOUS else (first, first))
            differences += first != second
    assert differences > 20


def test_the_reward_model_starts_from_the_policy_with_its_tokens(tmp_path):
    build_model(build_tokenizer(), seed=0).save_pretrained(tmp_path / "sft")
    build_tokenizer().save_pretrained(tmp_path / "sft")
    for name, seed in {"first": 0, "second": 0, "other": 1}.items():
        write_step_rm_start(tmp_path / "sft", tmp_path / name, seed)
    first, second, other = (
        (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("first", "second", "other")
    )
    assert first == second != other
    tokenizer = pair_tokenizer()
    assert tokenizer.convert_tokens_to_ids(list(VOCABULARY)) == list(range(len(VOCABULARY)))
    encoder = PairEncoder(
        tokenizer, PairFormat(separator=";", previous=1, question=True, max_length=64)
    )
    first, second = encoder.encode_chains([("3*9+6?", ["3*9=7;", r"7+6=3;\boxed{3}"])])[0]
    assert tokenizer.decode(first.ids) == "<bos>3*9+6?;3*9=7;"
    assert tokenizer.decode(second.ids) == "<bos>3*9+6?\n3*9=7;;7+6=3;\\boxed{3}"


def read_recorded(run):
    """Return the transcripts of the last of two steps, without what clocks say."""
    folder = find_folder(run)
    assert find_steps(folder) == [1, 2]
    return [{**row, "info": {**row["info"], **CLOCKS}} for row in read_step(folder)]


@pytest.mark.slow
def test_runs_are_bit_identical_on_any_cores_and_when_resumed(tmp_path):
    knobs = {"PYTHON": python(), "STEPS": "2", "SAVE_FREQ": "1", "PROMPTS": "8", "ROLLOUTS": "4"}
    environment = with_forks(os.environ | knobs)
    ends = []
    alone = tmp_path / "alone"
    write_data(
        alone / "data", train_size=64, val_size=4, test_size=4, sft_size=3000, labeled_size=400
    )
    train(alone / "data" / "sft.parquet", alone / "sft", steps=150)
    cores = os.sched_getaffinity(0)
    for name, allowed in (("alone", cores), ("crowded", {min(cores)})):
        run = tmp_path / name
        if run != alone:
            # It trains its own reward model, and resumes after the first step of the other run.
            shutil.copytree(
                alone,
                run,
                ignore=shutil.ignore_patterns("step_rm*", "global_step_2", "policy", "2.jsonl"),
            )
            (run / "checkpoints" / TRACKER).write_text("1")
        os.sched_setaffinity(0, allowed)
        try:
            train_step_rm(run)
            places = [run, run / "data", run / "sft", run / "step_rm_honest" / "model"]
            # A coefficient that moves far at every step.
            more = ["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"]
            more += [f"trainer.rollout_data_dir={run}/responses"]
            command = ["bash", ROOT / "recipes" / "pspo_wrs" / "train_cpu.sh", *places, *more]
            run_logged(run / "log.txt", command, environment)
        finally:
            os.sched_setaffinity(0, cores)
        words = ["-m", "prime_ext.generate.export", run / "checkpoints", run / "policy"]
        subprocess.run([python(), *words], check=True, timeout=600)
        models = [
            (run / part / "model.safetensors").read_bytes()
            for part in ("step_rm_honest/model", "policy")
        ]
        ends.append((*models, (run / "responses" / "2.jsonl").read_text()))
        metrics = read_metrics(run / "metrics.jsonl")
        assert sorted(metrics) == [1, 2] and metrics[2]["actor/grad_norm"] > 0
        assert (
            metrics[1]["actor/reward_kl_penalty_coeff"]
            != metrics[2]["actor/reward_kl_penalty_coeff"]
        )
    lines = [json.loads(line) for line in ends[0][-1].splitlines()]
    assert len(lines) == 32 and max(line["score"] for line in lines) > 0
    assert ends[0] == ends[1]
    recorded = [read_recorded(tmp_path / name) for name in ("alone", "crowded")]
    assert recorded[0] == recorded[1] and len(recorded[0]) == 4 * 4
    outcomes = {line["output"]: line["score"] for line in lines}
    for row in recorded[0]:
        assert len(row["step_scores"]) == len(row["step_ends"]) or row["step_scores"] is None
        # verl's file leaves special tokens out.
        text = re.sub("<(?:bos|eos|pad)>", "", "".join(row["tokens"]))
        assert row["outcome"] == pytest.approx(outcomes[text], rel=1e-5)
    assert main([str(alone)]) == 0
    shown = read_responses((alone / "transcripts.html").read_text())
    for row, response in zip(recorded[0], shown, strict=True):
        scores = row["step_scores"] or ()
        steps = [f"step {at} of {len(scores)}, score {one:.4g}" for at, one in enumerate(scores, 1)]
        assert list(dict.fromkeys(response.notes_with("step "))) == steps


# ---- measurement and report ----


def test_steps_and_scores_are_summarized_by_kind():
    steps = [
        check_steps("3*9+6?", text)
        for text in ("3*9=7;7=7;7+6=3;", "3*9+6=3;", "3*9=8;" + "8=8;" * 9)
    ]
    described = measure.describe_steps(steps)
    assert described["histogram"] == {"1": 1, "3": 1, "10": 1} and described[
        "mean"
    ] == pytest.approx(14 / 3)
    assert described["long"] == pytest.approx(1 / 3)
    assert described["kinds"] == pytest.approx(
        {"useful": 1.0, "superfluous": 10 / 3, "wrong": 1 / 3}
    )
    scores = [StepScores(values) for values in ((0.8, 0.2, 0.5), (0.9,), (0.5,) * 10)]
    described = measure.describe_scores(steps, scores)
    assert described["score"] == pytest.approx(((0.8 * 0.2 * 0.5) ** (1 / 3) + 0.9 + 0.5) / 3)
    assert described["score_by_kind"][USEFUL] == pytest.approx((0.8 + 0.5 + 0.9) / 3)


def measured(outcomes, histogram, score):
    kinds = {"useful": 3.0, "superfluous": 1.0, "wrong": 0.5}
    steps = {"mean": 4.5, "histogram": histogram, "long": 0.25 * ("9" in histogram), "kinds": kinds}
    known = {
        "accuracy": outcomes.count("1") / len(outcomes),
        "standard_error": 0.1,
        "n": len(outcomes),
    }
    return {**known, "outcomes": outcomes, "cut_off": 0.0, "steps": steps, "score": score}


def test_the_report_shows_both_policies_and_the_reward_models_accuracy(tmp_path):
    test = {"steps": 100, "accuracy": 0.9, "majority": 0.6, "macro_f1": 0.85}
    write_json(tmp_path / "before.json", measured("1010", {"4": 2, "9": 1, "1": 1}, 0.5))
    write_json(tmp_path / "after.json", measured("1110", {"3": 2, "4": 2}, 0.75))
    write_json(tmp_path / "step_rm_honest" / "results.json", {"test": test})
    rows = [
        {"step": step, "data": {"prime/steps/mean": 4.0, "prime/accuracy/before_filter": 0.5}}
        for step in (1, 2, 3)
    ]
    write_json_lines(tmp_path / "metrics.jsonl", rows)
    (tmp_path / "seconds.tsv").write_text("data\t10\npspo_wrs\t100\n")
    (tmp_path / "settings.txt").write_text("SEED=0\nOVERRIDES=a=b c=d\n")
    summary = pspo_report.report(tmp_path)
    assert summary["settings"] == {"SEED": "0", "OVERRIDES": "a=b c=d"}
    assert (
        summary["accuracy"]["gain"] == pytest.approx(0.25)
        and read_json(tmp_path / "summary.json") == summary
    )
    assert (tmp_path / "steps.png").stat().st_size > 5000
    said = pspo_report.format_report(tmp_path, summary)
    lines = {line[2:26].strip(): line[26:].split() for line in said.splitlines()}
    assert lines["more than 8 steps"] == ["25.0", "%", "0.0", "%"]
    assert lines["score, geometric mean"] == ["0.500", "0.750"]
    assert "accuracy 0.900 on 100 steps" in said


# ---- phases of the quickstarts ----


def phases(out, commands, knob="1"):
    script = (
        f"set -euo pipefail; source {ROOT}/recipes/quickstart/phases.sh; OUT={out}; KNOB={knob};"
        " KNOBS=(KNOB)\n"
    )
    # A root where the environment is made at once.
    script += f"ROOT={out.parent}; {commands}\n"
    (out.parent / "recipes").mkdir(exist_ok=True)
    (out.parent / "recipes" / "make_environment.sh").touch()
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


def test_phases_are_timed_skipped_when_done_and_bound_to_settings(
    tmp_path,
):
    commands = (
        'start_run; skip first "$OUT/a" || phase first touch "$OUT/a"; skip second "$OUT/b" ||'
        " phase second false"
    )
    assert phases(tmp_path / "run", commands).returncode == 1
    timed = [
        line.split("\t")[0] for line in (tmp_path / "run" / "seconds.tsv").read_text().splitlines()
    ]
    assert timed == ["environment", "first", "second"]
    assert "first: done before (a)" in phases(tmp_path / "run", commands).stdout
    refused = phases(tmp_path / "run", "start_run", knob="2")
    assert refused.returncode == 2 and "KNOB=2" in refused.stderr
