# SPDX-License-Identifier: Apache-2.0
"""One line for whatever is wrong with the command of a run, before anything is written."""

import pytest
from small_tasks import TASKS, ScriptedBackend, results_of, run

from eval.run_plan import choose_tasks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "maths500"], "no task 'maths500'; did you mean math500"),
        (["--tasks", "zzz"], "no task 'zzz'; there are aime, aime2022"),
        (["--tasks", "gsm8k", "--data", "/nowhere"], "get it with: hf download --repo-type dataset openai/gsm8k"),
        (["--k", "2"], "--k 2 is larger than the number of responses per problem, 1; give --n 2"),
        (["--decoding", "recommended"], "sums has no decoding 'recommended'; it has paper, several, greedy"),
        (["--n", "4"], "4 responses per problem are all the same with decoding 'paper' of sums: give --temperature"),
        (["--top-p", "0.9"], "--top-p and --top-k have no effect on decoding 'paper' of sums: give --temperature"),
        (["--temperature", "0", "--top-p", "0.9"], "--temperature 0 is greedy: --top-p and --top-k have no effect"),
        (["--min-new-tokens", "50"], "sums: the shortest response, 50 tokens, is longer than the longest, 32"),
        (["--prompt", "stirct"], "sums has no prompt 'stirct'; it has default, strict"),
        (["--split", "train"], "sums has no split 'train'; it has test"),
        (
            ["--system-prompt", "/nowhere"],
            "--system-prompt must be default, none, actions or a text file",
        ),
        (["--few-shot", "/nowhere"], "--few-shot /nowhere cannot be read"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(tasks, tmp_path, capsys, words, message):
    backend = ScriptedBackend()
    assert run(*tasks, *words, "--output", tmp_path / "out", backend=backend) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("eval.run: ") and said.count("\n") == 1
    assert not (tmp_path / "out").exists() and backend.asked == []


@pytest.mark.parametrize(
    ("backend", "message"),
    [({"template": False}, "has no chat template; give --chat-template"), ({"context": 8}, "leaves no room in the")],
)
def test_what_the_backend_cannot_do_is_said_before_it_is_asked(tasks, tmp_path, capsys, backend, message):
    scripted = ScriptedBackend(**backend)
    assert run(*tasks, "--output", tmp_path, backend=scripted) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and scripted.asked == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "math500"], "--output is needed"),
        (["--output", "x"], "--tasks is needed; --list says which there are"),
        (["--tasks", "a,,b"], "must be names with commas between them"),
        (["--tasks", "a", "--n", "0"], "'0' must be a whole number from 1"),
        (["--tasks", "a", "--top-p", "1.5"], "'1.5' must be above 0 and at most 1"),
        (["--tasks", "a", "--k", "1,x"], "'x' must be a whole number from 1"),
    ],
)
def test_a_command_that_cannot_be_read(capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_tasks_without_data_can_be_left_out(tasks, tmp_path, capsys):
    names = tasks[1] + ",gsm8k"
    words = ["--tasks", names, "--data", tasks[-1], "--output", tmp_path / "out"]
    assert run(*words) == 2
    assert run(*words, "--skip-missing") == 0
    assert "left out: gsm8k: " in capsys.readouterr().out
    assert list(results_of(tmp_path / "out")["tasks"]) == list(TASKS)


def test_a_group_has_no_problem_twice():
    math = [task.name for task in choose_tasks(["math"])]
    assert "aime" in math and "math500" in math and "aime2024" not in math and "humaneval" not in math
    code = [task.name for task in choose_tasks(["code"])]
    assert [name for name in code if name.startswith("livecodebench")] == ["livecodebench_v2"]
    assert [task.name for task in choose_tasks(["math", "aime2024", "math500"])] == [*math, "aime2024"]
