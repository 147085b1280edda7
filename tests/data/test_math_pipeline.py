# SPDX-License-Identifier: Apache-2.0
"""Math sources as RL rows: schema of Eurus-2-RL-Data, what is removed and listed, resuming, bad input."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from told import removed, rows_of

from data_preprocessing.pipeline import main
from prime_ext.tasks.action_prompt import MATH_SUFFIX, SYSTEM_PROMPT
from prime_ext.tasks.rl_rows import MATH_SCHEMA
from prime_ext.utils.rows import SourceError, hub_rows

FIXTURES = Path(__file__).parent / "fixtures"
SETTINGS = Path(__file__).resolve().parents[2] / "data_preprocessing" / "settings" / "gsm8k_math.yaml"
ALL = ("gsm8k", "math", "numina")


def run(folder, *words, sources=ALL):
    """Apply the rules of mathematics only."""
    chosen = [f"sources.{name}={'{}' if name in sources else 'null'}" for name in ALL]
    alone = [f"data_dir={FIXTURES}", "stages.deduplicate=null", "stages.decontaminate=null"]
    return main([str(SETTINGS), *chosen, *alone, *words, "--output-dir", str(folder), "--workers", "1"])


def rules_of(folder):
    return {(line["data_source"], line["row"]): line["rule"] for line in removed(folder)}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rl")
    assert run(folder) == 0
    return folder


def test_a_row_has_the_schema_of_eurus_2_rl_data(converted):
    assert pq.read_schema(converted / "train.parquet").equals(MATH_SCHEMA)
    problem = "A shelf holds 12 jars. Each jar has 85 beads. How many beads are there?"
    assert rows_of(converted)[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": problem + MATH_SUFFIX},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1020"},
        "extra_info": {"split": "train", "index": 0},
    }


def test_what_is_removed_is_listed_with_its_rule_and_the_rest_is_written(converted):
    assert rules_of(converted) == {
        ("openai/gsm8k", 5): "no_answer",
        ("DigitalLearningGmbH/MATH-lighteval", 2): "figure",
        ("DigitalLearningGmbH/MATH-lighteval", 3): "choice",
        ("DigitalLearningGmbH/MATH-lighteval", 4): "no_digit",
        ("DigitalLearningGmbH/MATH-lighteval", 6): "blank",
        ("numina_olympiads", 1): "proof",
        ("numina_cn_k12", 5): "blank",
        ("numina_aops_forum", 6): "no_answer",
        ("numina_orca_math", 7): "broken_latex",
    }
    # Multiple choice is put aside.
    aside = json.loads((converted / "choice.jsonl").read_text())
    assert aside["extra_info"] == {"split": "train", "index": 2} and "(A)" in aside["prompt"][1]["content"]
    written = Counter(row["data_source"] for row in rows_of(converted))
    numina = dict.fromkeys(("numina_cn_k12", "numina_amc_aime", "numina_synthetic_math"), 1)
    assert written == {"openai/gsm8k": 4, "DigitalLearningGmbH/MATH-lighteval": 2, **numina}


def test_without_rules_only_rows_without_an_answer_go_and_of_test_rows_no_others(converted, tmp_path):
    assert [row["reward_model"]["ground_truth"] for row in rows_of(converted, "test")] == ["25", "21"]
    (tmp_path / "mine.txt").write_text("Be brief.\n")
    words = ("stages.math_rules.rules=[]", f"system_prompt={tmp_path / 'mine.txt'}")
    assert run(tmp_path, *words, sources=["gsm8k", "math"]) == 0
    assert rows_of(tmp_path)[0]["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert rules_of(tmp_path) == {("openai/gsm8k", 5): "no_answer"}


BAD_ROWS = [
    '{"problem": "What is 1+1?", "answer": "2", "source": "a", "id": 1}',
    "{broken",
    '{"answer": "2", "source": "a"}',
    '{"problem": 7, "answer": ["2"], "source": "a"}',
    '{"problem": "What is 1+2?", "answer": "3"}',
    '{"problem": "What is 1+3?", "answer": "4", "source": "a", "id": 1}',
    '{"problem": "What is \\ud800?", "answer": "4", "source": "a"}',
    '{"problem": "' + "x" * 30_000 + '", "answer": "5", "source": "a"}',
]


def test_bad_rows_are_counted_and_listed_and_not_fatal(tmp_path):
    (tmp_path / "in.jsonl").write_text("\n".join(BAD_ROWS) + "\n")
    out = tmp_path / "out"
    assert run(out, "--input", f"numina={tmp_path / 'in.jsonl'}", sources=["numina"]) == 0
    assert [row["extra_info"]["index"] for row in rows_of(out)] == [0]
    lines = removed(out)
    assert [(line["row"], line["rule"]) for line in lines] == [(n, "bad_row") for n in range(2, 8)] + [(8, "giant")]
    reasons = "not JSON|no column problem|answer must be a text|no column source|id 1 was there before|half a character"
    for line, reason in zip(lines, [*reasons.split("|"), "30000 characters"], strict=True):
        assert reason in line["evidence"]


def test_files_of_an_earlier_run_do_not_stay_beside_new_ones(tmp_path, capsys):
    assert run(tmp_path, sources=["gsm8k"]) == 0
    assert run(tmp_path, sources=["math"]) == 2
    assert "test.parquet is of an earlier run" in capsys.readouterr().err


def test_hub_rows_come_numbered_and_a_missing_data_set_is_one_line(tmp_path):
    pq.write_table(pa.table({"problem": ["P", "Q"]}), tmp_path / "train.parquet")
    assert list(hub_rows(str(tmp_path), None, "train")) == [(1, {"problem": "P"}), (2, {"problem": "Q"})]
    with pytest.raises(SourceError, match="cannot be fetched from the hub .* give local files instead"):
        list(hub_rows(str(tmp_path / "nowhere"), None, "train"))
