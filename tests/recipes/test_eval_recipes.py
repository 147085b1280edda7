# SPDX-License-Identifier: Apache-2.0
"""The evaluation recipes: what they start, and that every task and decoding they name is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_rows import SAMPLES
from tiny_llama import save_llama

from prime_ext.tasks.task_file import load_task

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SUITES = {
    "eval_eurus2.sh": ["aime2024", "amc", "math500", "minerva_math", "olympiadbench", "leetcode", "livecodebench_v2"],
    "eval_pspo.sh": ["awpnli", "newsnli", "redditnli", "rte_quant", "stresstest", "qqa"],
}
TABLES = {"eval_eurus2.sh": "prime", "eval_pspo.sh": "pspo"}


@pytest.fixture
def run(tmp_path):
    """Runs a recipe with an interpreter that writes down its arguments, and results if it is asked for a run."""
    calls, stub = tmp_path / "calls", tmp_path / "python"
    stub.write_text(
        "#!/usr/bin/env bash\n"
        f'printf "%s\\0" "$@" >> {calls}; printf "\\n\\0" >> {calls}\n'
        '[[ "$2" == eval.run && -z "${FAILS:-}" ]] || exit ${FAILS:-0}\n'
        'while [[ $# -gt 0 && "$1" != --output ]]; do shift; done\n'
        '[[ " $* " == *" --show-prompt "* ]] || { mkdir -p "$2"; echo {} > "$2/results.json"; }\n'
    )
    stub.chmod(0o755)

    def start(script, *words, code=0, **knobs):
        calls.unlink(missing_ok=True)
        known = {key: value for key, value in os.environ.items() if key not in ("TASKS", "DATA", "DECODING", "BACKEND")}
        environment = {**known, "PYTHON": str(stub), **knobs}
        command = ["bash", str(RECIPES / script), *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        made = calls.read_text().split("\n\0")[:-1] if calls.exists() else []
        return done, [call.split("\0")[:-1] for call in made]

    return start


def options(call):
    """The options of a call by name; the last of a name counts, as for argparse."""
    return {word: call[index + 1] for index, word in enumerate(call[:-1]) if word.startswith("--")}


@pytest.mark.parametrize("script", SUITES)
def test_a_recipe_runs_the_suite_of_its_paper_and_says_where_the_report_is(run, script):
    done, (evaluation, report) = run(script, "some/model")
    assert evaluation[:2] == ["-m", "eval.run"]
    given = options(evaluation)
    assert given["--model"] == "some/model" and given["--tasks"].split(",") == SUITES[script]
    assert given["--decoding"] == "paper" and "--data" not in given
    assert given["--output"].endswith("/model-paper")
    assert report == ["-m", "eval.report", given["--output"], "--table", TABLES[script]]
    assert f"python -m eval.report {given['--output']} --table {TABLES[script]}" in done.stdout


@pytest.mark.parametrize("script", SUITES)
def test_every_task_of_a_recipe_has_both_decodings_and_numbers_for_its_table(script):
    metric = "accuracy" if TABLES[script] == "prime" else "micro_f1"
    for task in map(load_task, SUITES[script]):
        recommended = task.decoding["recommended"]
        assert (recommended.n, recommended.temperature, recommended.top_p) == (16, 0.3, 0.95)
        paper = task.decoding["paper"]
        if TABLES[script] == "pspo":
            assert paper.num_beams == 5
        elif task.name == "livecodebench_v2":
            assert (paper.n, paper.temperature, paper.top_p) == (10, 0.2, 0.95)
        else:
            assert not paper.do_sample and paper.n == 1
        assert any(own.metric == metric for own in task.references)


def test_a_run_that_fails_fails_the_recipe_and_one_without_results_has_no_report(run):
    done, calls = run("eval_eurus2.sh", "m", code=2, FAILS="2")
    assert len(calls) == 1 and "report:" not in done.stdout
    done, calls = run("eval_eurus2.sh", "m", "--show-prompt")
    assert len(calls) == 1 and "report:" not in done.stdout


@pytest.mark.parametrize("script", SUITES)
def test_a_recipe_explains_itself_and_refuses_what_it_does_not_know(run, script):
    done, calls = run(script, "--help")
    assert f"recipes/{script} MODEL" in done.stdout and "Knobs (environment): TASKS DATA" in done.stdout and not calls
    assert "NEVER RUN ON A GPU" in run(script, code=2)[0].stdout
    done, calls = run(script, "m", code=2, DECODING="beams")
    assert done.stderr == f"{script}: DECODING must be paper or recommended, got beams\n" and not calls


def test_a_recipe_evaluates_a_tiny_model(tmp_path):
    task = tmp_path / "some_of_awpnli.yaml"
    task.write_text("name: some_of_awpnli\nextends: awpnli\ntitle: Some of AwpNLI\nsource: {rows: null}\n")
    model = save_llama(tmp_path / "model", max_positions=4096)
    knobs = {"TASKS": str(task), "DATA": str(SAMPLES), "OUTPUT_DIR": str(tmp_path / "out"), "PYTHON": sys.executable}
    command = ["bash", str(RECIPES / "eval_pspo.sh"), str(model), "--limit", "2", "--max-new-tokens", "12"]
    done = subprocess.run(command, env={**os.environ, **knobs}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "AwpNLI" in done.stdout and "PSPO-WRS" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file() and (tmp_path / "out" / "results.json").is_file()
