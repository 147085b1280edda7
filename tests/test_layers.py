# SPDX-License-Identifier: Apache-2.0
"""Layers of the package: imports go downwards without cycles; its root has few modules."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_contracts_of_pyproject_are_kept():
    program = (
        "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_the_root_of_the_package_holds_few_modules():
    modules = {path.stem for path in (ROOT / "prime_ext").glob("*.py")}
    assert modules == {
        "__init__",
        "__main__",
        "plugin",
        "train",
        "doctor",
        "extend",
        "names",
        "upstream",
    }
