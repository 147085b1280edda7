# SPDX-License-Identifier: Apache-2.0
"""Benchmarks with tests in several parts, from the command to the results."""

import json

from benchmark_rows import SAMPLES
from small_tasks import ScriptedBackend, last_message, run


def test_base_and_plus_are_both_in_the_results_and_long_tests_are_not_in_every_line(tmp_path, capsys):
    task = tmp_path / "plus.yaml"
    task.write_text("name: plus\nextends: humaneval_plus\ntitle: Plus\nsource: {rows: null}\n")
    rows = [json.loads(line) for line in (SAMPLES / "humaneval_plus" / "HumanEvalPlus.jsonl").read_text().splitlines()]
    programs = {row["entry_point"]: row["prompt"] + row["canonical_solution"] for row in rows}
    # Right on the tests of HumanEval, wrong on one of those that EvalPlus added.
    programs["spread"] = "def spread(values):\n    return max(values) - min(values)\n"

    def answer(request):
        (name,) = (name for name in programs if f"def {name}(" in last_message(request.prompt))
        # The last problem is not answered.
        return "I do not know." if name == "count_words" else f"```python\n{programs[name]}```"

    out = tmp_path / "out"
    assert run("--tasks", task, "--data", SAMPLES, "--output", out, backend=ScriptedBackend(answer)) == 0
    results = json.loads((out / "results.json").read_text())["tasks"]["plus"]
    assert results["summary"]["scores"]["avg@1"]["value"] == 1 / 3
    assert {name: part["value"] for name, part in results["parts"].items()} == {"base": 2 / 3, "plus": 1 / 3}
    printed = capsys.readouterr().out
    assert "base" in printed and "66.7" in printed
    samples = [json.loads(line) for line in (out / "plus" / "samples.jsonl").read_text().splitlines()]
    assert [row["parts"] for row in samples] == [{"base": 1.0, "plus": 0.0}, {"base": 1.0, "plus": 1.0}, {}]


def test_tests_of_megabytes_are_recorded_by_their_hash(tmp_path):
    task = tmp_path / "plus.yaml"
    task.write_text(
        "name: plus\nextends: humaneval_plus\ntitle: Plus\nsource: {rows: null, local: {test: rows.jsonl}}\n"
    )
    row = json.loads((SAMPLES / "humaneval_plus" / "HumanEvalPlus.jsonl").read_text().splitlines()[0])
    row["plus_input"] += [[list(range(number))] for number in range(100)]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    program = f"```python\n{row['prompt']}{row['canonical_solution']}```"
    words = ("--tasks", task, "--data", tmp_path, "--output", tmp_path / "out")
    assert run(*words, backend=ScriptedBackend(lambda _: program)) == 0
    (sample,) = (tmp_path / "out" / "plus" / "samples.jsonl").read_text().splitlines()
    assert json.loads(sample)["gold"].startswith("sha256:") and json.loads(sample)["score"] == 1
    # Given again, nothing is judged anew.
    before = (tmp_path / "out" / "results.json").read_bytes()
    assert run(*words, backend=ScriptedBackend(lambda _: program)) == 0
    assert (tmp_path / "out" / "results.json").read_bytes() == before
