# SPDX-License-Identifier: Apache-2.0
"""Prompts that a model is shown: to the byte, whatever the command line asks for."""

import json

import pytest
from small_tasks import ScriptedBackend, planned, run

from prime_ext.generate.backend import BackendError

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


@pytest.fixture
def sums(tasks):
    """Return words of a command line with one task."""
    return ["--tasks", tasks[1].split(",")[0], *tasks[2:]]


@pytest.fixture
def few(tmp_path):
    (tmp_path / "few.yaml").write_text(FEW_SHOT)
    return ["--few-shot", tmp_path / "few.yaml"]


def shown(*words):
    """Return what the model is shown for the first problem."""
    prompt = planned(words)["sums"].shown["s0"]
    return (
        prompt if isinstance(prompt, str) else [(turn["role"], turn["content"]) for turn in prompt]
    )


def test_chats(sums, few, tmp_path):
    question = ("user", "0+1?\nBox it.")
    assert shown(*sums) == [question]
    strict = [*sums, "--prompt", "strict"]
    assert shown(*strict) == [("system", "You are strict."), ("user", "0+1?")]
    assert shown(*strict, "--system-prompt", "none") == [("user", "0+1?")]
    (tmp_path / "system.txt").write_text("Use {{braces}} and \\n.\nLine two.\n")
    chats = shown(*sums, "--system-prompt", tmp_path / "system.txt")
    assert chats[0] == ("system", "Use {{braces}} and \\n.\nLine two.")
    assert shown(*sums, *few) == [
        ("user", "1+1?\nBox it."),
        ("assistant", "It is \\boxed{2}."),
        # Braces in an example are its own.
        ("user", "{{problem}}?\nBox it."),
        ("assistant", "no idea"),
        question,
    ]


def test_plain_text_for_base_models(sums, few, tmp_path):
    strict = [*sums, "--raw", "--prompt", "strict"]
    assert shown(*sums, "--raw") == "0+1?\nBox it."
    assert shown(*strict) == "You are strict.\n\n0+1?"
    assert (
        shown(*strict, *few) == "You are strict.\n--\n"
        "Problem: 1+1?\nSolution: It is \\boxed{2}.\n--\n"
        "Problem: {{problem}}?\nSolution: no idea\n--\n"
        "Problem: 0+1?\nSolution: "
    )
    (tmp_path / "plain.yaml").write_text("examples: [{problem: '1', response: a}]")
    assert (
        shown(*sums, "--raw", "--few-shot", tmp_path / "plain.yaml")
        == "1\nBox it.\na\n\n0+1?\nBox it.\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("examples: [", "cannot be read"),
        ("stop: [x]", "needs the key 'examples'"),
        ("{examples: [{problem: a}]}", "examples.0 must have the key response"),
        ("{examples: [{question: a, response: x}]}",
         "example 1 has no 'problem', which the prompt of sums shows"),
        ("{examples: [{problem: a, response: x}], shots: 1}", "unknown key shots"),
        ("{examples: [{problem: a, response: x}], format: 'Q: {{prompt}}'}",
         "format must be a text with {{prompt}}"),
    ],
)  # fmt: skip
def test_a_bad_few_shot_file_is_one_line(sums, tmp_path, capsys, text, message):
    (tmp_path / "few.yaml").write_text(text)
    assert run(*sums, "--few-shot", tmp_path / "few.yaml", "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_show_prompt_prints_the_rendered_prompt_or_the_chat(tasks, capsys):
    class Server(ScriptedBackend):
        def render_prompt(self, request):
            raise BackendError("the server applies its own chat template")

    backend = ScriptedBackend()
    assert run(*tasks, "--show-prompt", "2", backend=backend) == 0
    printed = capsys.readouterr().out
    first = (
        "=== sums, problem s0, prompt default: exactly what the model sees\n<user>0+1?\nBox"
        " it.<assistant>\n"
    )
    assert first in printed and printed.count("===") == 6 and backend.asked == [] and backend.closed
    assert run(*tasks, "--show-prompt", "--system-prompt", "actions", backend=Server()) == 0
    head, _, chat = capsys.readouterr().out.split("=== ")[1].partition("\n")
    assert (
        head
        == "sums, problem s0, prompt default: the chat; the server applies its own chat template"
    )
    assert [turn["role"] for turn in json.loads(chat)] == ["system", "user"]


def test_stop_texts_reach_the_backend(sums, few, tmp_path):
    seen = []
    backend = ScriptedBackend(lambda request: seen.append(request) or "x", template=False)
    words = [*sums, "--limit", "1", "--raw", *few, "--stop", "Q:", "--output", tmp_path / "out"]
    assert run(*words, backend=backend) == 0
    (request,) = seen
    assert request.sampling.stop == ("\n--", "Q:") and request.sampling.temperature == 0
