# SPDX-License-Identifier: Apache-2.0
"""Data, measurement and reports of the CPU recipes of PSPO-WRS."""

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prime_ext.step_rm.convert.__main__ import main as convert
from prime_ext.step_rm.description import PairEncoder, PairFormat
from prime_ext.step_rm.labels import LABELS
from prime_ext.step_rm.records import read_steps
from prime_ext.step_rm.scorers.protocol import StepScores
from prime_ext.tasks.last_digit_chain import parse_prompt
from recipes.pspo_wrs import length_report, measure, report
from recipes.pspo_wrs.data import write_data
from recipes.pspo_wrs.length_study import Run
from recipes.pspo_wrs.prepare import pair_tokenizer, write_step_rm_start
from recipes.pspo_wrs.task import MAX_RESPONSE_LENGTH, OPERATIONS, SUPERFLUOUS, USEFUL, check_steps, token_count
from recipes.quickstart.model import build_model
from recipes.quickstart.tokenizer import VOCABULARY
from recipes.quickstart.tokenizer import build_tokenizer as build_policy_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"train": 30, "val": 10, "test": 20, "sft": 60, "labelled": 80}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder, **{f"{name}_size": size for name, size in SIZES.items()})
    return folder


def chains(data, labeller):
    return [json.loads(line) for line in (data / f"steps_{labeller}.jsonl").read_text().splitlines()]


# ---- data ----


def test_demonstrations_fit_into_a_response(data):
    rows = pq.read_table(data / "sft.parquet").to_pylist()
    assert 50 <= len(rows) <= 60
    for row in rows:
        user, assistant = row["messages"]
        assert len(parse_prompt(user["content"]).operations) in OPERATIONS
        assert token_count(assistant["content"]) < MAX_RESPONSE_LENGTH


def test_labelled_chains_are_of_problems_that_are_neither_trained_on_nor_tested(data):
    seen = {row["prompt"][0]["content"] for split in ("train", "val", "test") for row in rows_of(data, split)}
    questions = {chain["question"] for chain in chains(data, "honest")}
    assert len(questions) > 50 and not questions & seen


def rows_of(data, split):
    return pq.read_table(data / f"{split}.parquet").to_pylist()


def test_both_labellers_see_the_same_chains_and_differ_in_superfluous_steps(data):
    differences = 0
    for honest, lenient in zip(chains(data, "honest"), chains(data, "lenient"), strict=True):
        assert (honest["question"], honest["steps"]) == (lenient["question"], lenient["steps"])
        steps = check_steps(honest["question"], "".join(honest["steps"]))
        assert [step.text for step in steps] == honest["steps"]
        for step, first, second in zip(steps, honest["labels"], lenient["labels"], strict=True):
            assert (first, second) == ((0, 1) if step.kind == SUPERFLUOUS else (first, first))
            differences += first != second
    assert differences > 20


def test_the_labelled_chains_become_steps_of_all_three_labels_in_disjoint_splits(data, tmp_path, capsys):
    output = tmp_path / "steps.parquet"
    words = [f"--chains={data / 'steps_honest.jsonl'}", "--near-duplicates=text", f"--output={output}"]
    assert convert([*words, "--validation=0.2", "--test=0.2"]) == 0
    steps = list(read_steps(output))
    assert {step.label for step in steps} == set(LABELS)
    assert {step.split for step in steps} == {"train", "validation", "test"}
    places = {}
    for step in steps:
        assert places.setdefault(step.question, step.split) == step.split


# ---- step reward model ----


def test_the_reward_model_starts_from_the_policy_and_reads_its_tokens(tmp_path):
    policy = build_model(build_policy_tokenizer(), seed=0)
    policy.save_pretrained(tmp_path / "sft")
    build_policy_tokenizer().save_pretrained(tmp_path / "sft")
    write_step_rm_start(tmp_path / "sft", tmp_path / "start")
    assert (tmp_path / "start" / "model.safetensors").is_file()
    tokenizer = pair_tokenizer()
    assert tokenizer.convert_tokens_to_ids(list(VOCABULARY)) == list(range(len(VOCABULARY)))
    encoder = PairEncoder(tokenizer, PairFormat(separator=";", previous=1, question=True, max_length=64))
    first, second = encoder.encode_steps("3*9+6?", ["3*9=7;", r"7+6=3;\boxed{3}"])
    assert tokenizer.decode(first.ids) == "<bos>3*9+6?;3*9=7;"
    assert tokenizer.decode(second.ids) == "<bos>3*9+6?\n3*9=7;;7+6=3;\\boxed{3}"


# ---- measurement ----

STEPS = [check_steps("3*9+6?", response) for response in ("3*9=7;7=7;7+6=3;", "3*9+6=3;", "3*9=8;" + "8=8;" * 9)]


def test_numbers_and_kinds_of_steps_are_counted():
    result = measure.describe_steps(STEPS)
    assert result["histogram"] == {"1": 1, "3": 1, "10": 1}
    assert result["mean"] == pytest.approx(14 / 3)
    assert result["long"] == pytest.approx(1 / 3)
    assert result["kinds"] == pytest.approx({"useful": 1.0, "superfluous": 10 / 3, "wrong": 1 / 3})


def test_scores_are_summarised_by_kind_and_place():
    scores = [StepScores(tuple((1 - p, 0.0, p) for p in values)) for values in ((0.8, 0.2, 0.5), (0.9,), (0.5,) * 10)]
    result = measure.describe_scores(STEPS, scores)
    assert result["geometric"] == pytest.approx(((0.8 * 0.2 * 0.5) ** (1 / 3) + 0.9 + 0.5) / 3)
    assert result["by_kind"][USEFUL] == pytest.approx((0.8 + 0.5 + 0.9) / 3)
    # Too few steps at every place for a mean.
    assert result["by_place"] == {}


# ---- quickstart ----


def measured(accuracy="1010", histogram=None, geometric=0.5, cut_off=0.0, scorers=("step_rm",)):
    counts = {int(n): c for n, c in (histogram or {"4": 2, "9": 1, "1": 1}).items()}
    total = sum(counts.values())
    return {
        "accuracy": accuracy.count("1") / len(accuracy),
        "standard_error": 0.1,
        "n": len(accuracy),
        "outcomes": accuracy,
        "cut_off": cut_off,
        "steps": {
            "mean": sum(n * c for n, c in counts.items()) / total,
            "standard_error": 0.1,
            "histogram": {str(n): c for n, c in counts.items()},
            "long": sum(c for n, c in counts.items() if n > 8) / total,
            "kinds": {"useful": 3.0, "superfluous": 1.0, "wrong": 0.5},
        },
        "scores": {name: {"geometric": geometric, "by_kind": {}, "by_place": {}} for name in scorers},
    }


def test_the_report_of_the_quickstart_shows_both_distributions_and_what_the_reward_model_knows(tmp_path, capsys):
    test = {"steps": 100, "accuracy": 0.9, "majority": 0.6, "macro_f1": 0.85, "ece": 0.02}
    for name, value in {
        "before.json": measured(),
        "after.json": measured("1110", {"3": 2, "4": 2}, 0.75),
        "step_rm_honest/results.json": {"test": test},
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    rows = [{"step": step, "data": {"pspo/n_steps/mean": 4.0, "pspo/acc": 0.5}} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "seconds.tsv").write_text("data\t10\npspo_wrs\t100\npspo_wrs\t20\n")
    summary = report.report(tmp_path, {"SEED": "0"})
    assert summary["accuracy"]["gain"] == pytest.approx(0.25)
    assert summary["seconds"] == {"data": 10, "pspo_wrs": 120, "total": 130}
    assert json.loads((tmp_path / "summary.json").read_text())["settings"] == {"SEED": "0"}
    assert (tmp_path / "steps.png").stat().st_size > 5000
    lines = {line[2:26].strip(): line[26:].split() for line in report.table(summary).splitlines()}
    assert lines["3 to 5 steps"] == ["50.0", "%", "100.0", "%"]
    assert lines["more than 8 steps"] == ["25.0", "%", "0.0", "%"]
    assert "accuracy 0.900 on 100 steps" in report.text(tmp_path, summary)


def test_a_share_counts_bounds_and_the_open_end():
    steps = {"histogram": {"1": 1, "3": 2, "20": 1}}
    assert (report.share(steps, 0, 2), report.share(steps, 3, 3), report.share(steps, 4)) == (0.25, 0.5, 0.25)


# ---- length study ----


def finished(run, end, curve=(4.0, 5.0)):
    curves = {str(step): value for step, value in enumerate(curve, start=1)}
    return {
        "labeller": run.labeller,
        "shape": run.shape,
        "seed": run.seed,
        "start": measured(scorers=("honest", "lenient")),
        "end": end,
        "curves": {"steps": curves, "long": curves, "accuracy": curves},
    }


def end(steps, cut_off=0.0):
    return measured(histogram={str(steps): 4}, cut_off=cut_off, scorers=("honest", "lenient"))


def write(folder, run, result):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run.name}.json").write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("released", "weibull", "expected"),
    [((15, 15), (4, 4), " confirmed"), ((15, 6), (4, 4), "not confirmed"), ((15, 15), (4, 9), "not confirmed")],
    ids=["both as predicted", "one seed does not run away", "Weibull runs away"],
)
def test_the_prediction_must_come_true_in_every_seed(tmp_path, released, weibull, expected):
    for shape, lengths in (("released", released), ("weibull", weibull)):
        for seed, length in enumerate(lengths):
            run = Run("lenient", shape, seed)
            write(tmp_path, run, finished(run, end(length)))
    found = length_report.read_results(tmp_path)
    assert expected in length_report.prediction(found)


def test_a_chain_that_never_ends_runs_away_however_few_its_steps_are():
    assert length_report.verdict({0: {"end": end(4, cut_off=0.6)}}) == "runs away"
    assert length_report.verdict({0: {"end": end(4)}}) == "near 4"
    assert length_report.verdict({0: {"end": end(2)}}) == "shorter"
    assert length_report.verdict({0: {"end": end(7)}}) == "neither"


def test_without_the_runs_nothing_is_claimed(tmp_path):
    run = Run("honest", "weibull", 0)
    write(tmp_path, run, finished(run, end(4)))
    assert "cannot be judged" in length_report.prediction(length_report.read_results(tmp_path))


def test_the_report_of_the_study_has_a_row_per_shape_beside_the_start(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "length_study"
    for labeller in ("honest", "lenient"):
        for seed, steps in enumerate((4, 5)):
            run = Run(labeller, "weibull", seed)
            write(folder, run, finished(run, end(steps)))
    monkeypatch.setattr("sys.argv", ["length_report", "--results", str(folder)])
    length_report.main()
    lines = (tmp_path / "length_study.md").read_text().splitlines()
    assert [line.split(" | ")[1] for line in lines[2:6]] == ["(before)", "Weibull (paper)"] * 2
    assert "| 4.50 ± 0.50 |" in lines[3] and lines[3].endswith("| near 4 |")
    assert (tmp_path / "length_study.png").stat().st_size > 5000
    assert "near 4" in capsys.readouterr().out


# ---- phases of the quickstarts ----


def phases(out, commands, knob="1"):
    script = f"set -euo pipefail; ROOT={ROOT}; OUT={out}; KNOB={knob}; KNOBS=(KNOB)\n"
    script += f"source {ROOT}/recipes/quickstart/phases.sh\n{commands}\n"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


def test_a_folder_with_other_settings_is_refused(tmp_path):
    assert phases(tmp_path / "run", "start_run").returncode == 0
    assert phases(tmp_path / "run", "start_run").returncode == 0
    refused = phases(tmp_path / "run", "start_run", knob="2")
    assert refused.returncode == 2 and "KNOB=2" in refused.stderr


def test_a_phase_is_timed_also_when_it_fails_and_skipped_when_its_result_is_there(tmp_path):
    commands = (
        'start_run; skip first "$OUT/a" || phase first touch "$OUT/a"; skip second "$OUT/b" || phase second false'
    )
    done = phases(tmp_path / "run", commands)
    assert done.returncode == 1
    timed = [line.split("\t")[0] for line in (tmp_path / "run" / "seconds.tsv").read_text().splitlines()]
    assert timed == ["first", "second"]
    assert "first: done before (a)" in phases(tmp_path / "run", commands).stdout
