# SPDX-License-Identifier: Apache-2.0
"""The validator of RL files: what it finds, what it prints, how it exits."""

import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from data_preprocessing.validate import main
from prime_ext.tasks.rl_rows import MATH_SCHEMA, rl_row
from prime_ext.verifiers import sources
from recipes.quickstart.small_model import build_tokenizer
from recipes.tiny_model import byte_tokenizer


def row(index=0, gold="4", content="What is 2+2?", source="openai/gsm8k", split="train"):
    return rl_row(
        source,
        [{"role": "user", "content": content}],
        "math",
        gold,
        {"split": split, "index": index},
    )


def write(path, rows, schema=MATH_SCHEMA):
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return str(path)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row() | {"data_source": " "}, "data_source must be a text that is not empty"),
        (row() | {"prompt": []}, "prompt must "),
        (row() | {"prompt": [{"role": "human", "content": "x"}]},
         "prompt.0.role must be 'system', 'user' or 'assistant'"),
        (row() | {"prompt": [{"role": "user", "content": " "}]},
         "prompt.0.content must be a text that is not empty"),
        (row() | {"prompt": [{"role": "system", "content": "x"}]},
         "prompt must end with a message of the user"),
        (row() | {"reward_model": {"style": "model", "ground_truth": "4"}},
         "reward_model.style must match"),
        (row() | {"reward_model": None}, "reward_model must "),
        (row() | {"extra_info": {"split": "train", "index": None}},
         "extra_info.index must be a valid integer, or must be a valid string"),
        (row(1, "2^{3^{4^{5}}}"),
         "cannot be graded: the gold answer is too complex: a power beyond all limits"),
        (row(1, r"(1, \sum_{n})"),
         "cannot be graded: it is not understood, so that only the same text is correct:"),
        (row(1, "{4"), "cannot be graded: in a box it is read as 'nothing'"),
        (row(1, "x", source="poems"), "no verifier for data_source='poems'"),
        (row(1, "{'task': 'gcd'}", source="reasoning_gym/gcd"),
         "is not a problem of reasoning-gym: "),
        (row(1, "5"), "the same prompt was there before with another answer"),
        (row(0, "9", "What is 4+5?"), "openai/gsm8k train 0 was there before"),
        (row(1, "[]", "Sort.", source="apps"), "unusable tests"),
    ],
)  # fmt: skip
def test_bad_rows_are_listed_with_reasons_and_exit_status_1(tmp_path, capsys, bad, reason):
    assert main([write(tmp_path / "a.parquet", [row(), bad])]) == 1
    out = capsys.readouterr().out
    assert "a.parquet row 2: " in out and reason in out
    assert "1 rows with faults" in out and "nothing is wrong" not in out


def test_the_columns_of_dapo_math_17k_are_read(tmp_path, capsys):
    known = {"index": "9a9b6eb4"}
    rows = [row(source="math_dapo") | {"extra_info": known} for _ in range(2)]
    rows = [
        rl_row | {"reward_model": {"ground_truth": "4", "style": "rule-lighteval/MATH_v2"}}
        for rl_row in rows
    ]
    assert main([write(tmp_path / "a.parquet", rows, schema=None)]) == 0
    assert "| math_dapo | 2 | 0 | 1 |" in capsys.readouterr().out


def test_repeated_ids_are_faults_except_in_eurus_2_rl_data(tmp_path, capsys):
    train = write(tmp_path / "a.parquet", [row()])
    test = write(tmp_path / "b.parquet", [row(split="test")])
    assert main([train, test]) == 0
    assert "| openai/gsm8k | 2 | 0 | 1 |" in capsys.readouterr().out
    assert main([train, train]) == 1
    assert "repeated id 1" in capsys.readouterr().out
    tests = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})
    rows = [
        row(0, "4", split="dummy"),
        row(0, "5", "2+3?", split="dummy"),
        row(0, tests, "Add.", "taco", "dummy"),
    ]
    assert main([write(tmp_path / "a.parquet", rows)]) == 0


def test_a_verifier_that_judges_no_row_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    for name in ("odes", "elegies"):
        monkeypatch.setitem(sources.TASKS, name, None)  # and so gone after the test
        del sources.TASKS[name]
    head = "from prime_ext import extend\nfrom prime_ext.verifiers.verdict import wrong\n"
    kind = (
        "@extend.verifier('{0}', '{0}/*')\nclass V:\n"
        "    async def averify(self, response, gold):\n        return wrong(response, 0.0)\n"
    )
    (tmp_path / "verifier_of_odes.py").write_text(head + kind.format("odes"))
    (tmp_path / "verifier_of_elegies.py").write_text(head + kind.format("elegies"))
    path = write(tmp_path / "a.parquet", [row(), row(1, content="2*2", source="math/ode")])
    assert main([path, "--modules", "verifier_of_odes"]) == 1
    out = capsys.readouterr().out
    assert (
        "the verifier 'odes' of your modules judges no row: none of its patterns matches a data"
        " source of the rows, which are math/ode, openai/gsm8k" in out
    )
    assert "nothing is wrong" not in out
    # A module may have verifiers of other data sets too.
    ode = write(tmp_path / "b.parquet", [row(source="odes/mine")])
    assert main([ode, "--modules", "verifier_of_odes", "verifier_of_elegies"]) == 0
    out = capsys.readouterr().out
    assert "'elegies' of your modules judges no row" in out and "'odes'" not in out
    assert main([path, "--sources", "riddles=math"]) == 1
    assert "--sources riddles=... decides for no data source" in capsys.readouterr().out


def test_own_verifiers_are_imported_as_in_training(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_registered", list(sources._registered))
    for name, verdict in (("sonnets", "wrong(response, 0.0)"), ("songs", "True")):
        monkeypatch.setitem(sources.TASKS, name, None)  # and so gone after the test
        del sources.TASKS[name]
        (tmp_path / f"verifier_of_{name}.py").write_text(
            "from prime_ext import extend\nfrom prime_ext.verifiers.verdict import wrong\n"
            f"@extend.verifier('{name}', '{name}/*')\nclass V:\n"
            f"    async def averify(self, response, gold):\n        return {verdict}\n"
        )
    path = write(
        tmp_path / "a.parquet", [row(number, source="sonnets/mine") for number in range(9)]
    )
    assert main([path]) == 1
    out = capsys.readouterr().out
    assert (
        "a.parquet row 1 and 8 more: no verifier for data_source='sonnets/mine'" in out
        and "--modules" in out
    )
    assert out.count("no verifier") == 1 and main([path, "--modules", "verifier_of_sonnets"]) == 0
    song = write(tmp_path / "c.parquet", [row(0, source="songs/mine")])
    assert main([song, "--modules", "verifier_of_songs"]) == 1
    assert (
        "the verifier 'songs' fails: TypeError: averify must return a Verdict"
        in capsys.readouterr().out
    )
    assert (
        main(
            [write(tmp_path / "b.parquet", [row(0, source="riddles")]), "--sources", "riddl*=math"]
        )
        == 0
    )
    assert main([path, "--modules", "verifier_of_poems"]) == 2
    assert "validate: modules: verifier_of_poems cannot be imported" in capsys.readouterr().err


def test_prompts_are_measured_as_the_policy_sees_them(tmp_path, capsys):
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    tokenizer = byte_tokenizer()
    shown = tokenizer.apply_chat_template(
        row()["prompt"], add_generation_prompt=True, tokenize=False
    )
    expected = len(tokenizer(shown, add_special_tokens=False)["input_ids"])
    path = write(tmp_path / "a.parquet", [row(), row(1, "1", "1?")])
    arguments = [path, "--tokenizer", str(tmp_path / "tokenizer"), "--max-prompt-length"]
    assert main([*arguments, str(expected)]) == 0
    assert f" {expected} |\n" in capsys.readouterr().out
    assert main([*arguments, str(expected - 1)]) == 1
    assert (
        f"row 1: the prompt has {expected} tokens, more than {expected - 1}"
        in capsys.readouterr().out
    )


def test_a_missing_tokenizer_fails_quickly_without_the_hub(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    started = time.monotonic()
    assert main([write(tmp_path / "a.parquet", [row()]), "--tokenizer", "nobody/nothing"]) == 2
    # The hub's library tries again for 46 s.
    assert (
        "no tokenizer at nobody/nothing" in capsys.readouterr().err
        and time.monotonic() - started < 30
    )


def test_what_cannot_be_read_is_one_line(tmp_path, capsys):
    good = write(tmp_path / "b.parquet", [row()])
    empty = write(tmp_path / "empty.parquet", [])
    (tmp_path / "a.parquet").write_bytes(b"no parquet at all")
    byte_tokenizer(chat_template=None).save_pretrained(tmp_path / "bare")
    build_tokenizer().save_pretrained(tmp_path / "digits")
    columns = {
        "no column prompt": pa.schema({"data_source": pa.string()}),
        "data_source has incompatible types": MATH_SCHEMA.set(
            0, pa.field("data_source", pa.int64())
        ),
        "reward_model has incompatible types": MATH_SCHEMA.set(
            3, pa.field("reward_model", pa.string())
        ),
    }
    schemas = [
        write(tmp_path / f"{number}.parquet", [], schema)
        for number, schema in enumerate(columns.values())
    ]
    for words, reason in (
        *(([path], reason) for path, reason in zip(schemas, columns, strict=True)),
        ([str(tmp_path / "a.parquet")], "a.parquet cannot be read"),
        ([str(tmp_path / "c.parquet")], "c.parquet cannot be read"),
        ([empty], "has no rows"),
        ([good, "--tokenizer", str(tmp_path / "nowhere")], "no tokenizer at"),
        ([good, "--tokenizer", str(tmp_path / "bare")], "has no chat template"),
        ([good, "--tokenizer", str(tmp_path / "digits")], "the tokenizer cannot read these texts"),
        ([good, "--sources", "riddles_of_*=poetry"], "no task 'poetry'"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith("validate: ") and reason in error and "\n" not in error
