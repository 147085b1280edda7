# SPDX-License-Identifier: Apache-2.0
"""Copy the code problems of a folder of RL rows such as PRIME-RL/Eurus-2-RL-Data.

    python -m recipes.prime.code_rows data/eurus2_rl data/eurus2_code

Copies the rows with ``code`` in the column ``ability`` from train.parquet and validation.parquet,
for run_eurus2-7b_code_fsdp.sh.
"""

import sys
from pathlib import Path

import pyarrow.parquet as parquet

from prime_ext.utils.files import write_atomically

SPLITS = ("train", "validation")


def copy_code_rows(source: Path, target: Path) -> None:
    """Copy the code rows of one file.

    ``SystemExit``: the file is missing, or has no column ``ability`` or no such row.
    """
    if not source.is_file():
        raise SystemExit(f"code_rows: {source} does not exist")
    names = parquet.read_schema(source).names
    if "ability" not in names:
        raise SystemExit(f"code_rows: {source} has no column 'ability'; it has {names}")
    rows = parquet.read_table(source, filters=[("ability", "==", "code")])
    if not rows.num_rows:
        raise SystemExit(f"code_rows: {source} has no row whose ability is code")
    with write_atomically(target) as temporary:
        parquet.write_table(rows, temporary)
    print(f"{target}: {rows.num_rows} rows")


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    for split in SPLITS:
        copy_code_rows(*(Path(folder, f"{split}.parquet") for folder in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
