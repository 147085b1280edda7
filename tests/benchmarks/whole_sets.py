# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark reads public data sets from."""

import argparse
import os
from pathlib import Path


def add_data_argument(parser: argparse.ArgumentParser, sets: str) -> None:
    """``--data``, by default ``PRIME_EXT_DATA``; one of them must be given."""
    default = os.environ.get("PRIME_EXT_DATA")
    help_text = f"folder with {sets}; default: PRIME_EXT_DATA"
    parser.add_argument("--data", type=Path, default=default, required=not default, help=help_text)
