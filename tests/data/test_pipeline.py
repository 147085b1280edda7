# SPDX-License-Identifier: Apache-2.0
"""The pipeline: settings, stages in order, what goes and why, resuming, the same bytes however it is run."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import yaml
from told import removed, rows_of

from data_preprocessing.check_solutions import CodeVerifier
from data_preprocessing.pipeline import STAGES, load_settings, main
from data_preprocessing.stages import Workers
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.action_prompt import CODE_SUFFIX, SYSTEM_PROMPT
from prime_ext.utils.files import read_json
from prime_ext.utils.rows import SourceError

FIXTURES = Path(__file__).parent / "fixtures"
SETTINGS = Path(__file__).resolve().parents[2] / "data_preprocessing" / "settings"
GSM8K_MATH = SETTINGS / "gsm8k_math.yaml"
OUTPUTS = {"train.parquet", "test.parquet", "removed.jsonl", "choice.jsonl", "report.json", "report.md"}


def test_the_shipped_settings_name_all_stages_and_their_options_with_the_defaults():
    named = {}
    for path in SETTINGS.glob("*.yaml"):
        content = yaml.safe_load(path.read_text())["stages"]
        for name, options in load_settings(path).stages.items():
            assert options == STAGES[name]()
            named[name] = named.get(name) or list(content[name])
    assert named == {name: list(vars(kind())) for name, kind in STAGES.items()}


def test_words_go_over_the_file_and_null_leaves_out():
    words = ["stages.decontaminate=null", "stages.deduplicate.threshold=0.9", "sources.math=null", "data_dir=D"]
    words += ["stages.math_rules.rules=[]", "sources.gsm8k.input.test=t.jsonl", "system_prompt=none"]
    settings = load_settings(GSM8K_MATH, [*words, "stages.deduplicate.levels=exact"])
    assert list(settings.sources) == ["gsm8k"] and settings.sources["gsm8k"].input == {"test": Path("t.jsonl")}
    assert list(settings.stages) == ["math_rules", "deduplicate"]
    assert settings.stages["math_rules"].rules == () and settings.stages["deduplicate"].levels == ("exact",)
    assert settings.stages["deduplicate"].threshold == 0.9
    assert settings.data_dir == Path("D") and settings.system_prompt == "none"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stages.deduplicate.treshold=1", "stages.deduplicate has no key 'treshold'; did you mean threshold?"),
        ("stages.deduplicate.threshold=2", "stages.deduplicate.threshold must "),
        ("stages.math_rules.rules=[fun]", "stages.math_rules.rules.0 must be 'giant'"),
        ("stages.decontaminate.tasks=[gsm9k]", "stages.decontaminate.tasks.0 must be all or one of"),
        ("sources.gsm9k={}", "sources has no key 'gsm9k'; did you mean gsm8k?"),
        ("chunk_row=3", "the file has no key 'chunk_row'; did you mean chunk_rows?"),
        ("nonsense", "'nonsense' must be KEY=VALUE"),
    ],
)
def test_a_mistake_is_one_line_with_the_key(word, reason):
    with pytest.raises(SourceError) as error:
        load_settings(GSM8K_MATH, [word])
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_killed_worker_is_one_line_and_order_is_kept():
    with Workers(2, batch_size=2) as workers:
        sent = {"a": -3, "b": -2, "c": None, "d": 0, "e": 1}
        assert list(workers.map(abs, sent, sent.get)) == [("a", 3), ("b", 2), ("c", None), ("d", 0), ("e", 1)]
        with pytest.raises(SourceError, match="a worker process was killed"):
            list(workers.map(os._exit, [1, 1, 1]))


def run(folder, settings, *words, workers=1):
    arguments = [SETTINGS / f"{settings}.yaml", "--output-dir", folder, "--workers", workers, *words]
    return main([str(word) for word in arguments])


@pytest.fixture
def math_files(tmp_path):
    """Two sources with twins, a training row that gives away a test row, and bad rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    story = "A farmer sells {} baskets of apples on the market of the small town every morning for three coins each."
    train = [
        {"question": story.format(5), "answer": "so\n#### 15"},
        {"question": "How many legs have 4 horses and 3 ducks that stand together on a meadow?", "answer": "#### 22"},
        {"question": story.format(5).replace("small", "tiny"), "answer": "it is\n#### 15"},
        {"question": story.format(6), "answer": "#### 18"},
        {"question": "A train of twelve cars with forty seats has how many seats if 9 are broken?", "answer": "no"},
        {"question": "Nine sheep eat 18 bales of hay in a week; how many bales eat 3 sheep?", "answer": "#### 6"},
    ]
    test = [{"question": "Nine sheep eat 27 bales of hay in a week; how many bales eat 3 sheep?", "answer": "#### 9"}]
    other = [
        {"problem": "How many legs have 4 horses and 3 ducks, that stand together on a meadow", "answer": "22"},
        {"problem": "What is $3^4$?", "answer": "81"},
    ]
    for name, rows in (("train", train), ("test", test), ("other", other)):
        lines = [json.dumps(row) for row in rows] + (["{broken"] if name == "train" else [])
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = [f"gsm8k:train={folder}/train.jsonl", f"gsm8k:test={folder}/test.jsonl", f"math={folder}/other.jsonl"]
    # No task of the evaluation is at hand: the own test rows are what can be given away.
    return ["data_dir=nowhere", "--input", *files]


def test_stages_apply_in_order_and_say_what_they_removed_and_of_what(tmp_path, math_files, capsys):
    out = tmp_path / "out"
    assert run(out, "gsm8k_math", *math_files) == 0
    found = {(line["file"].partition("/")[2], line["row"]): line for line in removed(out)}
    assert {key: line["rule"] for key, line in found.items()} == {
        ("train.jsonl", 7): "bad_row",
        ("train.jsonl", 5): "no_answer",
        ("train.jsonl", 3): "duplicate_near",
        ("other.jsonl", 1): "duplicate_exact",
        ("train.jsonl", 6): "contaminated",
    }
    twin = found["train.jsonl", 3]["details"]
    assert twin["of"] == ["openai/gsm8k", "train", 0] and 0.8 <= twin["similarity"] < 1
    assert "small town" in twin["of_text"] and "tiny town" in twin["text"]
    hit = found["train.jsonl", 6]["details"]
    assert (hit["task"], hit["task_row"], hit["level"]) == ("openai/gsm8k test", 0, "numbers")
    assert "27 bales" in hit["task_text"] and "18 bales" in hit["text"]
    # The story with another number is another problem, and stays.
    assert [row["reward_model"]["ground_truth"] for row in rows_of(out)] == ["15", "22", "18", "81"]
    assert rows_of(out, "test")[0]["extra_info"] == {"split": "test", "index": 0}
    assert {path.name for path in out.iterdir()} == OUTPUTS
    report = read_json(out / "report.json")
    counts = {(source["split"], source["data_source"]): source for source in report["sources"]}
    assert [counts["train", "openai/gsm8k"][name] for name in ("read", "written")] == [6, 3]
    given_away = {"task": "openai/gsm8k test", "level": "numbers", "training_rows": 1, "test_rows": 1}
    assert report["contamination"] == [given_away]
    assert "nothing is wrong" in capsys.readouterr().out
    text = (out / "report.md").read_text()
    assert text.startswith("# GSM8K and MATH\n") and "| openai/gsm8k test | numbers | 1 | 1 |" in text
    assert "not compared with math500: " in text and "Nine sheep eat 27 bales" in text and "nowhere" not in text


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in OUTPUTS}


def test_the_result_depends_neither_on_processes_nor_on_parts(tmp_path, math_files):
    for folder, words, workers in (("a", (), 1), ("b", (), 2), ("c", ("chunk_rows=2",), 1)):
        assert run(tmp_path / folder, "gsm8k_math", *words, *math_files, workers=workers) == 0
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "c")


CODE = ["data_dir=" + str(FIXTURES), "chunk_rows=4", "stages.decontaminate.tasks=[]"]


def test_code_problems_of_four_sources_become_rows_of_eurus_2_rl_data(tmp_path):
    assert run(tmp_path, "code", *CODE, "stages.check_solutions=null") == 0
    assert {(line["data_source"], line["row"]): line["rule"] for line in removed(tmp_path)} == {
        ("apps", 3): "image",
        ("apps", 4): "unreadable_tests",
        ("apps", 5): "unreadable_tests",
        ("apps", 6): "interactive",
        ("apps", 8): "duplicate_exact",
        ("apps", 9): "contradictory_tests",
        ("apps", 12): "several_answers",
        ("codecontests", 2): "files",
        ("codecontests", 3): "no_tests",
        ("taco", 1): "image",
        ("taco", 2): "duplicate_exact",
        ("codeforces", 4): "interactive",
        ("codeforces", 5): "bad_row",
    }
    first = rows_of(tmp_path)[0]
    assert (first["ability"], first["data_source"]) == ("code", "apps")
    assert first["prompt"][0] == {"role": "system", "content": SYSTEM_PROMPT}
    assert first["prompt"][1]["content"].endswith("Example output\n5" + CODE_SUFFIX)
    assert first["extra_info"] == {"split": "train", "index": 0}
    halves = next(row for row in rows_of(tmp_path) if row["data_source"] == "codecontests")
    assert json.loads(halves["reward_model"]["ground_truth"])["inputs"] == ["8\n", "10\n", "2\n"]
    assert read_json(tmp_path / "report.json")["notes"] == {"code_tests: cut tests": 1, "code_tests: repeated tests": 1}


def test_tests_that_no_reference_program_passes_are_removed_and_what_passes_is_counted(tmp_path, monkeypatch):
    pytest.importorskip("pyseccomp")
    limits = ["stages.check_solutions.seconds=3", "stages.check_solutions.sandbox_workers=2"]
    assert run(tmp_path, "code", *CODE, *limits) == 0
    (failed,) = [line for line in removed(tmp_path) if line["rule"] == "solutions_fail"]
    assert (failed["data_source"], failed["row"]) == ("apps", 7)
    assert "2 of 2 programs tried: wrong" in failed["evidence"]
    notes = read_json(tmp_path / "report.json")["notes"]
    counts = {"kept without a Python program": 1} | {f"passed by program {n}": 4 if n == 1 else 1 for n in (1, 2, 3)}
    assert {name: n for name, n in notes.items() if name.startswith("check")} == {
        f"check_solutions: {note}": n for note, n in counts.items()
    }
    # Verdicts are kept: a second run runs no program and writes the same bytes.
    before = (tmp_path / "train.parquet").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(CodeVerifier, "submit_program", None)
        assert run(tmp_path, "code", *CODE, *limits) == 0
    assert (tmp_path / "train.parquet").read_bytes() == before
    # The verifier of training agrees.
    row = next(row for row in rows_of(tmp_path) if "fn_name" in row["reward_model"]["ground_truth"])
    response = "```python\ndef double(x):\n    return x + x\n```"
    gold = row["reward_model"]["ground_truth"]
    assert asyncio.run(compute_score("apps", response, gold, row["extra_info"]))["score"] == 1.0
