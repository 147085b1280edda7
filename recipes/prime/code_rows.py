# SPDX-License-Identifier: Apache-2.0
"""The code problems of a folder of RL rows such as PRIME-RL/Eurus-2-RL-Data, for run_eurus2-7b_code_fsdp.sh.

    python -m recipes.prime.code_rows data/eurus2_rl data/eurus2_code

Copies the rows whose column ``ability`` says ``code`` from train.parquet and validation.parquet.
"""

import argparse
from pathlib import Path

import pyarrow.parquet as parquet

from prime_ext.utils.files import atomic_path

SPLITS = ("train", "validation")


def copy_code_rows(source: Path, target: Path) -> int:
    """Copy the rows of one file. Returns how many.

    Raises:
        SystemExit: the file is not there, has no column ``ability``, or no such row.
    """
    if not source.is_file():
        raise SystemExit(f"code_rows: {source} does not exist")
    names = parquet.read_schema(source).names
    if "ability" not in names:
        raise SystemExit(f"code_rows: {source} has no column 'ability'; it has {names}")
    rows = parquet.read_table(source, filters=[("ability", "==", "code")])
    if not rows.num_rows:
        raise SystemExit(f"code_rows: {source} has no row whose ability is code")
    with atomic_path(target) as temporary:
        parquet.write_table(rows, temporary)
    return rows.num_rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args(arguments)
    options.target.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        path = options.target / f"{split}.parquet"
        print(f"{path}: {copy_code_rows(options.source / path.name, path)} rows")


if __name__ == "__main__":
    main()
