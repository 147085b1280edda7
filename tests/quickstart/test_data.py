# SPDX-License-Identifier: Apache-2.0
"""The parquet files of the quickstart, in the schemas of verl."""

import pyarrow.parquet as pq
import pytest

from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import read_json
from recipes.quickstart.data import write_data

SIZES = {"train": 60, "val": 20, "test": 40, "sft": 80}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder, **{f"{split}_size": size for split, size in SIZES.items()})
    return folder


def rows(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def prompts(folder, split):
    if split == "sft":
        return [row["messages"][0]["content"] for row in rows(folder, split)]
    return [row["prompt"][0]["content"] for row in rows(folder, split)]


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_rl_rows_have_the_schema_of_verl_and_the_right_answer(folder, split):
    for index, row in enumerate(rows(folder, split)):
        problem = task.parse_prompt(row["prompt"][0]["content"])
        assert row == {
            "data_source": "prime_ext/last_digit_chain",
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
            "extra_info": {"split": split, "index": index},
        }


def test_sft_rows_are_a_question_and_a_demonstration(folder):
    for row in rows(folder, "sft"):
        user, assistant = row["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert task.check_steps(user["content"], assistant["content"])
        assert assistant["content"].endswith("}")


def test_some_demonstrations_are_wrong_on_purpose(folder):
    right = [
        task.outcome_reward(row["messages"][1]["content"], str(task.parse_prompt(row["messages"][0]["content"]).answer))
        for row in rows(folder, "sft")
    ]
    assert 0.05 < sum(right) / len(right) < 0.6


def test_prompts_are_unique_and_the_files_disjoint(folder):
    everything = [prompt for split in SIZES for prompt in prompts(folder, split)]
    assert len(everything) == sum(SIZES.values())
    assert len(set(everything)) == len(everything)


def test_the_data_are_repeatable_and_the_marker_comes_with_them(folder, tmp_path):
    write_data(tmp_path, **{f"{split}_size": size for split, size in SIZES.items()})
    assert all(rows(tmp_path, split) == rows(folder, split) for split in SIZES)
    assert read_json(tmp_path / "data.json")["rows"] == SIZES
