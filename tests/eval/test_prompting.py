# SPDX-License-Identifier: Apache-2.0
"""What a model is shown: to the byte, whatever the command line asks for."""

import json
from pathlib import Path

import pytest
from small_tasks import ScriptedBackend, run

from eval.prompting import FewShot, PromptError, Style, read_few_shot, read_system
from prime_ext.generate.backend import BackendError
from prime_ext.tasks.action_prompt import ACTIONS
from prime_ext.tasks.task_file import load_task

FEW_SHOT = """\
examples:
  - {problem: "1+1?", response: 'It is \\boxed{2}.'}
  - {problem: "{{problem}}?", response: no idea}
format: |-
  Problem: {{prompt}}
  Solution: {{response}}
separator: "\\n--\\n"
stop: ["\\n--"]
"""


@pytest.fixture(scope="module")
def sums(tasks):
    return load_task(Path(tasks[-1]) / "sums.yaml")


@pytest.fixture
def problem(sums):
    return sums.problem({"id": "x", "problem": "2+{{problem}}?", "answer": 4, "level": 1})


@pytest.fixture
def few_shot(tmp_path):
    path = tmp_path / "few.yaml"
    path.write_text(FEW_SHOT)
    return read_few_shot(path)


def test_the_prompts_of_the_task_file(sums, problem):
    assert Style().shown(sums, problem) == ({"role": "user", "content": "2+{{problem}}?\nBox it."},)
    strict = Style("strict").shown(sums, problem)
    assert [turn["content"] for turn in strict] == ["You are strict.", "2+{{problem}}?"]


def test_another_system_message_or_none(sums, problem, tmp_path):
    (tmp_path / "system.txt").write_text("Use {{braces}} and \\n.\nLine two.\n")
    given = Style("strict", read_system(str(tmp_path / "system.txt"))).shown(sums, problem)
    assert given[0] == {"role": "system", "content": "Use {{braces}} and \\n.\nLine two."}
    assert Style("strict", read_system("none")).shown(sums, problem) == ({"role": "user", "content": "2+{{problem}}?"},)
    assert Style("strict", read_system("default")) == Style("strict")


def test_the_system_message_of_the_actions_has_real_line_breaks():
    text = read_system("actions")
    assert all(f"\n[{action}]" in text for action in ACTIONS) and "\\n" not in text


def test_worked_examples_are_turns_of_a_chat(sums, problem, few_shot):
    assert Style(few_shot=few_shot).shown(sums, problem) == (
        {"role": "user", "content": "1+1?\nBox it."},
        {"role": "assistant", "content": "It is \\boxed{2}."},
        {"role": "user", "content": "{{problem}}?\nBox it."},
        {"role": "assistant", "content": "no idea"},
        {"role": "user", "content": "2+{{problem}}?\nBox it."},
    )


def test_plain_text_for_base_models(sums, problem, few_shot):
    assert Style(raw=True).shown(sums, problem) == "2+{{problem}}?\nBox it."
    assert Style("strict", raw=True).shown(sums, problem) == "You are strict.\n\n2+{{problem}}?"
    assert Style("strict", few_shot=few_shot, raw=True).shown(sums, problem) == (
        "You are strict.\n--\n"
        "Problem: 1+1?\nSolution: It is \\boxed{2}.\n--\n"
        "Problem: {{problem}}?\nSolution: no idea\n--\n"
        "Problem: 2+{{problem}}?\nSolution: "
    )
    assert few_shot.stop == ("\n--",)


def test_the_format_of_plain_text_has_a_default(sums, problem):
    shot = FewShot(({"problem": "1", "response": "a"},))
    assert Style(few_shot=shot, raw=True).shown(sums, problem) == "1\nBox it.\na\n\n2+{{problem}}?\nBox it.\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("examples: [", "cannot be read"),
        ("examples: []", "examples must be a list that is not empty"),
        ("{format: x}", "the file needs the key 'examples'"),
        ("{examples: [{problem: a}]}", "examples.1 needs the key 'response'"),
        ("{examples: [{problem: 2, response: x}]}", "examples.1.problem must be a text"),
        ("{examples: [{problem: a, response: x}], shots: 1}", "the file has no key 'shots'"),
        ("{examples: [{problem: a, response: x}], format: 'Q: {{prompt}}'}", "format must be a text with {{prompt}}"),
        ("{examples: [{problem: a, response: x}], stop: ['']}", "stop must be a list of texts"),
        ("{examples: [{problem: a, response: x}], separator: 1}", "separator must be a text, got 1"),
    ],
)
def test_a_bad_few_shot_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "few.yaml"
    path.write_text(text)
    with pytest.raises(PromptError) as caught:
        read_few_shot(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_examples_must_have_the_fields_of_the_task(tasks, tmp_path, capsys):
    (tmp_path / "few.yaml").write_text("{examples: [{question: a, response: x}]}")
    assert run(*tasks, "--few-shot", tmp_path / "few.yaml", "--output", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "few-shot example 1 has no 'problem', which the prompt of sums shows" in said and said.count("\n") == 1


def test_an_empty_system_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(PromptError, match="is empty; none leaves the system message out"):
        read_system(str(tmp_path / "empty.txt"))


def test_show_prompt_prints_what_the_model_sees_and_ends(tasks, tmp_path, capsys):
    backend = ScriptedBackend()
    assert run(*tasks, "--show-prompt", "2", "--prompt", "default", backend=backend) == 0
    printed = capsys.readouterr().out
    assert (
        "=== sums, problem s0, prompt default: exactly what the model sees\n<user>0+1?\nBox it.<assistant>\n" in printed
    )
    assert printed.count("===") == 6 and backend.asked == [] and backend.closed


def test_show_prompt_of_a_server_shows_the_chat(tasks, capsys):
    class Server(ScriptedBackend):
        def shown(self, request):
            raise BackendError("the server applies its own chat template")

    assert run(*tasks, "--show-prompt", "--system-prompt", "actions", backend=Server()) == 0
    first = capsys.readouterr().out.split("=== ")[1]
    head, _, chat = first.partition("\n")
    assert head == "sums, problem s0, prompt default: the chat; the server applies its own chat template"
    assert [turn["role"] for turn in json.loads(chat)] == ["system", "user"]


def test_raw_prompts_and_stop_texts_reach_the_backend(tasks, tmp_path):
    (tmp_path / "few.yaml").write_text(FEW_SHOT)
    seen = []
    backend = ScriptedBackend(lambda request: seen.append(request) or "x", template=False)
    words = [
        "--tasks",
        tasks[1].split(",")[0],
        *tasks[2:],
        "--limit",
        "1",
        "--raw",
        "--few-shot",
        tmp_path / "few.yaml",
    ]
    assert run(*words, "--stop", "Q:", "--output", tmp_path / "out", backend=backend) == 0
    (request,) = seen
    assert request.prompt.endswith("Problem: 0+1?\nBox it.\nSolution: ")
    assert request.sampling.stop == ("\n--", "Q:") and request.sampling.temperature == 0
