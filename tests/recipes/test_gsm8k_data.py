# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""GSM8K in verl's schema."""

import pytest

from data_preprocessing.gsm8k import DATA_SOURCE, final_answer, load_split, rl_row


def test_the_final_answer_is_the_number_after_the_marker_without_separators():
    assert final_answer("Half of it is 2/2=<<2/2=1>>1.\n#### 1,234") == "1234"
    assert final_answer("It falls.\n#### -3") == "-3"


def test_a_solution_without_a_final_answer_is_an_error():
    with pytest.raises(ValueError, match="#### number"):
        final_answer("The answer is 3.")


def test_a_row_has_the_schema_of_verl():
    row = rl_row({"question": "How many?", "answer": "Count.\n#### 7"}, 3, "train")
    assert row["data_source"] == DATA_SOURCE == "openai/gsm8k"
    assert row["prompt"][0]["role"] == "user" and row["prompt"][0]["content"].startswith("How many? ")
    assert row["reward_model"] == {"style": "rule", "ground_truth": "7"}
    assert row["extra_info"] == {"split": "train", "index": 3}


def test_a_missing_local_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train\.jsonl"):
        load_split("train", tmp_path)
