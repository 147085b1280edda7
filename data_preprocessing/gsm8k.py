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
"""GSM8K in verl's RL schema.

    python -m data_preprocessing.gsm8k --output-dir data/gsm8k [--source FOLDER]

Reads ``openai/gsm8k`` from the Hugging Face hub, or ``train.jsonl`` and ``test.jsonl`` of the official repository
(openai/grade-school-math) from a local folder. The answer is asked for after ``####``, which is what verl's own reward
for the data source ``openai/gsm8k`` looks for.
"""

import argparse
import re
from pathlib import Path

from datasets import Dataset, load_dataset

from prime_ext.files import atomic_path

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"#### (-?[0-9.,]+)\s*$")


def final_answer(solution: str) -> str:
    """The number after ``####`` in an official solution, without thousands separators.

    Raises:
        ValueError: the solution has no such line.
    """
    match = _FINAL_ANSWER.search(solution)
    if match is None:
        raise ValueError(f"no final answer '#### number' at the end of the solution {solution[-80:]!r}")
    return match[1].replace(",", "")


def rl_row(row: dict[str, str], index: int, split: str) -> dict:
    """One problem in the schema of verl's ``RLHFDataset``."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{row['question']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": final_answer(row["answer"])},
        "extra_info": {"split": split, "index": index},
    }


def load_split(split: str, source: Path | None) -> Dataset:
    """Questions and answers of ``train`` or ``test``.

    Raises:
        FileNotFoundError: the local folder has no file of that split.
    """
    if source is None:
        return load_dataset("openai/gsm8k", "main", split=split)
    path = source / f"{split}.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; it should be the official {split}.jsonl of GSM8K")
    return load_dataset("json", data_files=str(path), split="train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--source", type=Path, help="folder with the official train.jsonl and test.jsonl")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        raw = load_split(split, arguments.source)
        rows = raw.map(
            lambda row, index, split=split: rl_row(row, index, split),
            with_indices=True,
            remove_columns=raw.column_names,
            desc=f"gsm8k {split}",
        )
        with atomic_path(arguments.output_dir / f"{split}.parquet") as temporary:
            rows.to_parquet(temporary)
        print(f"{arguments.output_dir / split}.parquet: {len(rows)} problems")


if __name__ == "__main__":
    main()
