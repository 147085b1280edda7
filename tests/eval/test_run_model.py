# SPDX-License-Identifier: Apache-2.0
"""``python -m eval.run`` with a tiny model on this machine."""

import json

import pytest
from scripted_server import ScriptedServer
from small_tasks import gold_by_prompt, results_of
from tiny_llama import CHAT, save_llama

from eval.run import main
from prime_ext.tasks.task_file import task_names


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("tiny") / "model", seed=3)


def test_a_local_model_interrupted_leaves_the_same_bytes(tiny, tasks, tmp_path, capsys):
    """Sampled in float64, so that the batches after the interruption change no token."""
    sums = ["--tasks", tasks[1].split(",")[0], "--data", tasks[-1], "--limit", "4"]
    words = [*sums, "--model", tiny, "--backend", "transformers", "--dtype", "float64", "--batch-size", "3"]
    words = [str(word) for word in [*words, "--temperature", "1", "--n", "2", "--max-new-tokens", "6"]]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*words, "--output", str(whole)]) == 0
    assert main([*words, "--output", str(cut)]) == 0
    lines = (whole / "sums" / "responses.jsonl").read_bytes().splitlines(keepends=True)
    assert len({json.loads(line)["text"] for line in lines}) > 4
    (cut / "sums" / "responses.jsonl").write_bytes(lines[6] + lines[1] + lines[4][:9])
    (cut / "sums" / "samples.jsonl").unlink()
    (cut / "results.json").unlink()
    assert main([*words, "--output", str(cut)]) == 0
    for name in ("settings.json", "results.json", "sums/responses.jsonl", "sums/samples.jsonl"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    model = results_of(whole)["model"]
    assert model["backend"] == "transformers" and model["model"] == str(tiny)
    capsys.readouterr()
    assert main([*words, "--show-prompt"]) == 0
    assert capsys.readouterr().out.endswith("exactly what the model sees\n[user] 0+1?\nBox it.\n[assistant] \n")


@pytest.mark.parametrize(
    ("template", "words", "message"),
    [
        (None, [], "has no chat template; give one with --chat-template FILE, or use a raw prompt"),
        (CHAT, ["--max-new-tokens", "1010"], "do not fit into the context of 1024 tokens"),
    ],
)
def test_what_a_local_model_cannot_do_is_one_line(tasks, tmp_path, capsys, template, words, message):
    model = save_llama(tmp_path / "model", chat_template=template)
    sums = ["--tasks", tasks[1].split(",")[0], "--data", tasks[-1], "--output", str(tmp_path / "out")]
    assert main([*sums, "--model", str(model), "--backend", "transformers", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("eval.run: ")]
    assert len(said) == 1 and message in said[0]


def test_a_server_that_cannot_answer_some_requests_is_asked_again(tasks, folder, tmp_path, capsys):
    golds = gold_by_prompt(folder)
    words = ["--tasks", tasks[1].split(",")[0], "--data", tasks[-1], "--backend", "server", "--attempts", "1"]
    words += ["--output", str(tmp_path / "out")]
    with ScriptedServer(golds, faults=[500, 500]) as server:
        assert main([*words, "--base-url", server.base_url]) == 1
        task = results_of(tmp_path / "out")["tasks"]["sums"]
        assert task["failed_responses"] == 2 and task["summary"]["scores"]["avg@1"]["problems"] == 10
        assert main([*words, "--base-url", server.base_url]) == 0
        assert len(server.requests) == 12 + 2
    assert results_of(tmp_path / "out")["tasks"]["sums"]["summary"]["scores"]["avg@1"]["value"] == 1
    capsys.readouterr()
    assert main([*words, "--base-url", server.base_url]) == 2
    said = capsys.readouterr().err
    assert "cannot be reached" in said and said.count("\n") == 1


def test_all_tasks_are_listed_without_a_model(capsys):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in task_names()) and "decodings paper, recommended" in listed
