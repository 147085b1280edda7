# SPDX-License-Identifier: Apache-2.0
"""Studies: statistics, what is run and what is not repeated, and tables that pages show."""

import hashlib
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from examples.minimal_prime import ChainTask, Rollouts, pad_left
from prime_ext.algorithms.turns import turn_boundaries
from prime_ext.config.checks import SettingsError
from prime_ext.utils.files import read_json, write_json
from prime_ext.utils.run_store import RunError
from prime_ext.verifiers.gym_verifier import read_problem
from recipes.environment import environment_data
from recipes.environment.number_path_task import MAX_LENGTH
from recipes.quickstart.small_model import build_model
from recipes.run_statistics import (
    PAIR_ACCURACY,
    find_crossing,
    format_mean,
    get_paired_error,
    read_seconds,
    run_metrics,
)
from recipes.studies import laboratory, study_report, through_verl
from recipes.studies.game_task import GameTask, play
from recipes.studies.run import main, run_study
from recipes.studies.study_report import format_table, read_results, read_study
from recipes.tiny_model import write_model

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.stem for path in study_report.FOLDER.glob("*.yaml"))
PAGES = [
    *(ROOT / "docs" / "explanation" / "results").glob("*.md"),
    *(ROOT / "docs" / "tutorials").glob("*.md"),
]


def test_statistics():
    assert find_crossing([0, 10, 20], [0.2, 0.4, 0.8], 0.5) == pytest.approx(12.5)
    assert find_crossing([0, 10], [0.2, 0.4], 0.5) is None
    assert find_crossing([0, 10], [0.6, 0.4], 0.5) == 0.0
    assert format_mean([1.0, 2.0, 3.0], 100, 1) == "200.0 ± 57.7" and format_mean([1.0]) == "1.00"
    assert get_paired_error("0000", "0011") == pytest.approx((1 / 3) ** 0.5 / 2)
    with pytest.raises(ValueError, match="same"):
        get_paired_error("01", "011")


def test_files_of_a_run_that_was_interrupted(tmp_path):
    with pytest.raises(ValueError, match="file"):
        run_metrics(tmp_path)
    (tmp_path / "seconds.tsv").write_text("data\t5\nprime\t60\nprime\t40\n")
    assert read_seconds(tmp_path / "seconds.tsv") == {"data": 5.0, "prime": 100.0, "total": 105.0}


def test_a_table_of_some_methods_compares_with_the_first_of_them():
    study = read_study("compact")
    results = read_results(study)
    some = {name: results[name] for name in ("rloo_ema", "distilled")}
    assert format_table(study, some) == format_table(study, some, "rloo_ema")
    with pytest.raises(SystemExit, match="baseline rloo has no runs; there are: none"):
        format_table(study, {})


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_shows_the_table_of_the_stored_results(name):
    study = read_study(name)
    results = read_results(study)
    assert list(results) == list(study["methods"])
    table = format_table(study, results)
    if any(
        table in page.read_text() and f"recipes.studies.run {name}" in page.read_text()
        for page in PAGES
    ):
        return
    # A variation of a task has a row with the ratios of two methods.
    (row,) = [
        line
        for page in PAGES
        for line in page.read_text().splitlines()
        if line.startswith(f"| `{name}`:")
    ]
    for method in ("rloo_ema", "distilled"):
        (line,) = [line for line in table.splitlines() if line.startswith(f"| `{method}`")]
        cells = dict(zip(table.splitlines()[0].split("|"), line.split("|"), strict=True))
        for accuracy in row.split("|")[2].split(","):
            (ratio,) = re.findall(r"\((\S+ ± \S+),", cells[f" rollouts to {accuracy.strip()}% "])
            assert ratio in row, (method, ratio, row)


# ---- runs ----

STUDY = {
    "task": {"length": 3},
    "rollouts": 40,
    "tuning_seeds": [0],
    "seeds": [1, 2],
    "more_seeds": {"rloo": [3]},
    "methods": {"rloo": [["rollout.prompts=5"], ["rollout.prompts=4", "actor.lr=1e-3"]],
     "held": [["rloo_ema", "rollout.prompts=5"]]},
    "table": {"ratios": ["rollouts"], "accuracies": [0.9], "means": ["gate"]},
}  # fmt: skip


@pytest.fixture
def tiny_task(monkeypatch):
    """Replace runs by ones without training: lr 1e-3 is better, and the curve shows the seed."""

    def run(study, name, words, seed, output):
        last = 0.5 + 0.1 * ("actor.lr=1e-3" in words) + 0.01 * seed
        return {"rollouts": [0, study["rollouts"]], "accuracy": [0.2, last]}

    monkeypatch.setattr(laboratory, "run", run)


def test_the_best_candidate_runs_on_the_fresh_seeds(tiny_task, tmp_path):
    results = run_study({"name": "tiny", **STUDY}, tmp_path)["methods"]
    assert results["rloo"]["words"] == ["rollout.prompts=4", "actor.lr=1e-3"]
    assert results["rloo"]["tuning"] == {
        "rollout.prompts=5": 0.35,
        "rollout.prompts=4,actor.lr=1e-3": 0.4,
    }
    assert {name: list(method["runs"]) for name, method in results.items()} == {
        "rloo": list("123"),
        "held": list("12"),
    }
    assert results["rloo"]["runs"]["2"] == {"curve": {"rollouts": [0, 40], "accuracy": [0.2, 0.62]}}


def test_a_study_of_ones_own_writes_one_small_file(tiny_task, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(STUDY))
    words = ["run", str(tmp_path / "mine.yaml"), "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    main()
    lines = (tmp_path / "mine.json").read_text().splitlines()
    assert len(lines) == 1 + 5 and list(json.loads("".join(lines))["methods"]) == ["held", "rloo"]
    assert "| `held`, rollout.prompts=5 | 2 | >40.0 |" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*words, "--only", "rlo"])
    with pytest.raises(SystemExit):
        main()
    assert "rlo is not a method of mine" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="compakt is not a study; there are: agent"):
        read_study("compakt")


@pytest.mark.parametrize("lines", [{}, {"held": {0.5: "rloo", 1: "held"}}])
def test_a_picture_has_a_line_for_each_name(tiny_task, tmp_path, monkeypatch, lines):
    picture = {"picture": {"accuracy": 0.5, "axis": "place", "lines": lines}} if lines else {}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(STUDY | picture))
    study = read_study(str(tmp_path / "mine.yaml"))
    results = tmp_path / "results.json"
    write_json(results, run_study(study, tmp_path))
    drawn = []
    monkeypatch.setattr(study_report, "save", lambda figure, path: drawn.append((figure, path)))
    words = ["report", str(tmp_path / "mine.yaml"), "--results", str(results), "--picture", "x.png"]
    monkeypatch.setattr("sys.argv", words)
    study_report.main()
    ((figure, path),) = drawn
    (axis,) = figure.axes
    labels = axis.get_legend_handles_labels()[1]
    assert path == Path("x.png")
    curves = ["held, rollout.prompts=5", "rloo, rollout.prompts=4, actor.lr=1e-3"]
    assert sorted(labels) == (["held"] if lines else curves)


class Fake(through_verl.VerlTask):
    """A task whose script leaves metrics and checkpoints, or fails for the second seed."""

    script = "x.sh"

    def prepare(self):
        pass

    def measure(self, policy, knobs):
        return {"accuracy": 0.25 if policy.name == "sft" else 0.75, "knob": float(knobs["LR"])}


def test_verl_runs_are_measured_once_and_failures_stop_no_others(tmp_path, monkeypatch):
    started = []

    def train(command, knobs, run):
        started.append((knobs["SEED"], command[-1]))
        if knobs["SEED"] == "1":
            raise RuntimeError("the end of its log")
        row = {"timing_s/step": 3.0, "timing_s/save_checkpoint": 1.0, "prime/filter/examined": 6}
        lines = [
            json.dumps({"step": step, "data": row | {PAIR_ACCURACY: step / 10}}) for step in (1, 2)
        ]
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (run / "hydra" / ".hydra").mkdir(parents=True)
        config = {"data": {"train_batch_size": 4}, "actor_rollout_ref": {"rollout": {"n": 2}}}
        (run / "hydra" / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
        write_json(run / "checkpoints" / "global_step_2" / "prime_ext_complete.json", {"files": {}})

    monkeypatch.setattr(through_verl, "run_logged", train)
    monkeypatch.setitem(through_verl.VERL_TASKS, "fake", Fake)
    study = {
        "name": "s",
        "through_verl": "fake",
        "steps": 2,
        "every": 1,
        "seeds": [0, 1, 2],
        "words": ["LR=1", "a=1"],
    }
    study["methods"] = {"m": [["LR=2", "b=2"]]}
    for starts in (3, 4):
        with pytest.raises(SystemExit, match="(?s)1 runs failed.*m, seed 1: the end of its log"):
            run_study(study, tmp_path)
        assert len(started) == starts
    assert started[0] == ("0", "b=2")
    run = read_json(tmp_path / "s" / "runs" / "m_seed0" / "result.json")["run"]
    curve = {
        "steps": [0, 2],
        "prompts": [0, 12],
        "rollouts": [0, 24],
        "seconds": [0, 4.0],
        "accuracy": [0.25, 0.75],
    }
    assert run["curve"] == curve | {"knob": [2.0, 2.0], "pair_accuracy": [None, 0.15]}
    assert run["end"]["seconds_per_step"] == 2.0 and run["end"]["accuracy"] == 0.75
    assert not (tmp_path / "s" / "runs" / "m_seed0" / "checkpoints").exists()
    study["words"] = ["LR=1", "a=2"]
    with pytest.raises(RunError, match="m_seed0 holds a run with command .*choose another"):
        run_study(study, tmp_path)


# ---- runs in one process ----


def test_a_run_keeps_its_curve_and_refuses_other_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(
        laboratory, "write_start", partial(laboratory.write_start, steps=50, batch_size=16)
    )
    monkeypatch.setattr(ChainTask, "n_values", 2)
    study = {"name": "tiny", "task": {"length": 2, "flipped": 0.5}, "rollouts": 8}
    words = ["guarded", "rollout.prompts=4", "rollout.n=2"]
    curve = laboratory.run(study, "mine", words, 0, tmp_path)
    assert {len(values) for values in curve.values()} == {2} and set(curve) >= {
        "seconds",
        "step_accuracy",
        "step_auc",
    }
    assert laboratory.run(study, "mine", words, 0, tmp_path) == curve
    scored = [*words, "scorer.accuracy=0.9", "scorer.repeats=true", "scorer.center_wrong=true"]
    scored[0] = "rloo"
    assert "gate" in laboratory.run(
        study, "scored", [*scored, "prime.process.gate=true"], 0, tmp_path
    )
    for word, hint in (
        ("scorer.accuracy=2", "scorer.accuracy must be less"),
        ("scorer.acuracy=1", "unknown key scorer.acuracy; did you mean accuracy?"),
    ):
        with pytest.raises(SettingsError, match=hint):
            laboratory.run(study, "rloo", ["scorer.accuracy=1", word], 0, tmp_path)
    for other, hint in (
        ({"rollouts": 16}, "budget 8, now it is 16"),
        ({"task": {"lenght": 3}}, "task.length 2, now it is null"),
    ):
        with pytest.raises(RunError, match=hint):
            laboratory.run(study | other, "mine", words, 0, tmp_path)
    with pytest.raises(SettingsError, match="task: .*'lenght'"):
        laboratory.run(study | {"task": {"lenght": 3}}, "mine", words, 1, tmp_path)


@pytest.mark.parametrize("method", ["rloo", "guarded", "distilled"])
def test_an_interrupted_run_continues_with_the_same_numbers(method, tmp_path, monkeypatch):
    monkeypatch.setattr(
        laboratory, "write_start", partial(laboratory.write_start, steps=50, batch_size=16)
    )
    monkeypatch.setattr(ChainTask, "n_values", 2)
    study = {"name": "tiny", "task": {"length": 2}, "rollouts": 480}
    words = [method, "rollout.prompts=20", "rollout.n=4"]
    whole = laboratory.run(study, "mine", words, 0, tmp_path / "whole")
    step = laboratory.StudyTrainer.step
    steps = []

    def stop_at_the_fourth(trainer):
        if len(steps) == 3:
            raise KeyboardInterrupt
        steps.append(step(trainer))

    with monkeypatch.context() as patches:
        patches.setattr(laboratory.StudyTrainer, "step", stop_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            laboratory.run(study, "mine", words, 0, tmp_path)
    with pytest.raises(RunError, match="budget 480, now it is 320; remove it to start again"):
        laboratory.run(study | {"rollouts": 320}, "mine", words, 0, tmp_path)
    curve = laboratory.run(study, "mine", words, 0, tmp_path)
    assert curve["rollouts"] == [0, 160, 320, 480]
    assert curve | {"seconds": None} == whole | {"seconds": None}
    assert curve["seconds"] == sorted(curve["seconds"])
    assert [path.suffix for path in (tmp_path / "tiny").iterdir() if path.is_file()] == [".json"]


def test_an_episode_is_a_response_with_rewards_at_the_ends_of_turns():
    task = GameTask(distance=2)
    model = build_model(task.tokenizer, seed=1, max_position_embeddings=MAX_LENGTH).eval()
    generator = torch.Generator().manual_seed(0)
    problems = task.draw(40, generator, held_out=True)
    assert not set(problems) & set(task.seeds[False])
    rollouts = play(model, task, problems, generator)
    outcome_B = task.verify(problems, rollouts.response_BT)
    gain_BT = task.turn_rewards("gains", rollouts.mask_BT)
    assert [len(turns.gains) for turns in task.turns] == [
        int(turn_boundaries(mask_T[None], mask_T[None]).sum()) for mask_T in rollouts.mask_BT
    ]
    # The gains of an episode that arrives are all of its progress.
    arrived_B = (gain_BT.sum(1) - 1).abs() < 1e-6
    assert torch.equal(arrived_B.float(), outcome_B) and not gain_BT[~rollouts.mask_BT].any()
    for turns, row, mask_T in zip(task.turns, rollouts.response_BT, rollouts.mask_BT, strict=True):
        replies = task.tokenizer.decode(row[~mask_T & (row != task.pad)])
        assert replies.count("<bos>At ") == len(turns.gains) - 1


@pytest.mark.parametrize("words", [["rloo", "turns=gains"], ["guarded", "by_turn=true"]])
def test_turns_of_a_game_are_rewarded_as_the_study_says(words, tmp_path, monkeypatch):
    monkeypatch.setattr(environment_data, "SIZE", 500)
    monkeypatch.setattr(GameTask, "held_out", 20)
    study = {"name": "game", "task": {"distance": 2, "steps": 2}, "rollouts": 80}
    curve = laboratory.run(study, "mine", words, 0, tmp_path)
    assert curve["rollouts"] == [0, 80] and all(share <= 1 for share in curve["step_accuracy"])
    with pytest.raises(SettingsError, match="turns=gains, by_turn=False: only games have turns"):
        laboratory.run(study | {"task": {"length": 3}}, "rloo", ["turns=gains"], 0, tmp_path)


@pytest.mark.slow
def test_a_model_learns_generated_problems_with_fields_of_its_study(tmp_path):
    pytest.importorskip("reasoning_gym")
    task = {"reasoning_gym": "gcd:max_value=99:extraction=lenient", "limit": 6, "train": 50}
    study = {
        "name": "tiny",
        "model": str(tmp_path / "model"),
        "task": task,
        "rollouts": 16,
        "every": 1,
    }
    study["words"] = ["rollout.prompts=4", "rollout.n=2", "actor.mini_batches=1"]
    words = ["distilled", "shuffled=true", "actor.lr=1e-3"]
    with pytest.raises(
        SettingsError, match="there is no model in .*model; python -m recipes.pretrained.fetch"
    ):
        laboratory.run(study, "control", words, 0, tmp_path)
    write_model(tmp_path / "model")
    curve = laboratory.run(study, "control", words, 0, tmp_path)
    assert curve["rollouts"] == [0, 8, 16] and curve == laboratory.run(
        study, "control", words, 0, tmp_path
    )
    assert curve["seconds"][0] == 0 < curve["seconds"][1] and "step_accuracy" not in curve
    made = laboratory.GymTask(study["model"], **task)
    for held_out, count in ((True, 256), (False, 50)):
        problems = made.draw(999, torch.Generator().manual_seed(0), held_out)
        texts = [f"{read_problem(gold)['answer']}." for _, gold in problems]
        response_BT = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(made.encoder.tokenizer(text)["input_ids"]) for text in texts],
            True,
            made.pad,
        )
        assert (
            len(problems) == count and made.verify(problems, response_BT).tolist() == [1.0] * count
        )
    with pytest.raises(
        SettingsError, match="task: unknown key gcd.max_valeu; did you mean max_value?"
    ):
        laboratory.run(
            study | {"task": task | {"reasoning_gym": "gcd:max_valeu=9"}},
            "mine",
            words,
            0,
            tmp_path,
        )


@pytest.mark.slow
def test_runs_share_a_warm_start_that_is_trained_once(tmp_path):
    pytest.importorskip("reasoning_gym")
    write_model(tmp_path / "model")
    start = tmp_path / "start"
    study = {
        "name": "tiny",
        "model": str(tmp_path / "model"),
        "warm_start": {"folder": str(start), "steps": 2, "lr": 1e-3, "batch_size": 4, "seed": 0},
        "task": {"sums": "max_digits=1", "limit": 8, "train": 20, "demonstrations": 8},
        "rollouts": 8,
        "every": 1,
        "words": ["rollout.prompts=4", "rollout.n=2", "actor.mini_batches=1"],
    }
    curve = laboratory.run(study, "distilled", ["precision=float32"], 0, tmp_path)
    assert curve["kl_from_start"][0] == pytest.approx(0, abs=1e-4)
    weights = (start / "model.safetensors").read_bytes()
    assert weights != (tmp_path / "model" / "model.safetensors").read_bytes()
    laboratory.run(study, "distilled", [], 0, tmp_path)
    assert weights == (start / "model.safetensors").read_bytes()
    files = ("distilled,precision=float32_seed0.json", "distilled_seed0.json")
    first, second = (read_json(tmp_path / "tiny" / name) for name in files)
    assert first["start"] == second["start"] == hashlib.sha256(weights).hexdigest()
    assert (first["precision"], second["precision"]) == ("float32", "bfloat16")
    with pytest.raises(SettingsError, match="precision.*'float16'"):
        laboratory.run(study, "distilled", ["precision=float16"], 0, tmp_path)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("accuracy", [0.0, 0.7, 1.0])
def test_a_scorer_misjudges_a_share_of_the_steps(accuracy, repeats):
    task = ChainTask()
    problems = task.draw(500, torch.Generator().manual_seed(0))
    response_BT = task.demonstrate(problems, 1.0, torch.Generator().manual_seed(1))
    prompt_BP, mask_BP = pad_left(task.prompts(problems), task.pad)
    rollouts = Rollouts(prompt_BP, mask_BP, response_BT, response_BT != task.pad)
    label_BT, is_end_BT = laboratory.label_steps(task, rollouts)
    scorer = laboratory.NoisyScorer(accuracy, repeats=repeats)
    generator = torch.Generator().manual_seed(2)
    (score_BT, ends_BT), (again_BT, _) = (
        scorer.score(task, rollouts, generator, seed=3) for _ in range(2)
    )
    assert torch.equal(ends_BT, is_end_BT) and not score_BT[~is_end_BT].any()
    agrees_N = (score_BT == label_BT)[is_end_BT]
    assert float(agrees_N.float().mean()) == pytest.approx(accuracy, abs=0.08)
    assert torch.equal(score_BT, again_BT) == (repeats or accuracy in (0.0, 1.0))
    if repeats:
        # A step is judged alike wherever it is.
        facts_N3 = response_BT.unfold(1, 3, 1)[is_end_BT[:, 2:]]
        judged = set(zip(map(tuple, facts_N3.tolist()), agrees_N.tolist(), strict=True))
        assert len(judged) == len({fact for fact, _ in judged}) > 100


def test_steps_are_labeled_by_the_value_before_them():
    task = ChainTask()
    problems = task.draw(1, torch.Generator().manual_seed(0))
    response_BT = task.demonstrate(problems, 0.0, torch.Generator())
    prompt_BP, mask_BP = pad_left(task.prompts(problems), task.pad)
    rollouts = Rollouts(prompt_BP, mask_BP, response_BT, response_BT != task.pad)
    label_BT, is_result_BT = laboratory.label_steps(task, rollouts)
    assert (
        label_BT[is_result_BT].tolist() == [1] * 8
        and task.verify(problems, response_BT).item() == 1
    )
    # The third result becomes another value, and all later ones follow from it.
    value = (int(response_BT[0, 6]) - task.first_value + 1) % task.n_values
    for t in range(6, 17, 2):
        value = value if t == 6 else int(task.right[problems[0][t // 2], value])
        response_BT[0, t] = value + task.first_value
    assert laboratory.label_steps(task, rollouts)[0][is_result_BT].tolist() == [
        1,
        1,
        0,
        1,
        1,
        1,
        1,
        1,
    ]
    assert task.verify(problems, response_BT).item() == 0
