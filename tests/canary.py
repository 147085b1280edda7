# SPDX-License-Identifier: Apache-2.0
"""Check of another version of verl: every name that prime_ext relies on, looked up in its wheel.

    python tests/canary.py            # the newest verl that pip offers
    python tests/canary.py 0.9.0      # this one

Exits with 1 and a line per name that is gone or changed, with 0 if none is (docs/how_to/upgrading_verl.md).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECK = """
import json, sys
import verl
import verl_names
problems = verl_names.missing_names()
print("\\n" + json.dumps({"file": verl.__file__, "names": len(verl_names.VERL_NAMES), "problems": problems}))
"""


def check(version: str | None, folder: Path) -> dict:
    """Return what a version of verl (None: the newest) lacks; ``folder`` is for its wheel.

    ``RuntimeError``: it cannot be downloaded or imported.
    """
    name = f"verl=={version}" if version else "verl"
    words = [sys.executable, *"-m pip download -q --no-deps --only-binary :all: -d".split(), str(folder), name]
    fetched = subprocess.run(words, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("verl-*.whl"))
    if not wheels:
        raise RuntimeError(f"{name} cannot be downloaded: {(fetched.stderr.strip().splitlines() or ['no output'])[-1]}")
    zipfile.ZipFile(wheels[0]).extractall(folder / "verl_wheel")
    paths = os.pathsep.join([str(folder / "verl_wheel"), str(ROOT), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "PYTHONPATH": paths, "VERL_PLATFORM": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{wheels[0].name} cannot be imported here: {done.stderr.strip().splitlines()[-1]}")
    return {"wheel": wheels[0].name, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="of verl; default: the newest")
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = check(parser.parse_args().version, Path(folder))
        except RuntimeError as error:
            raise SystemExit(f"canary: {error}") from None
    for problem in found["problems"]:
        print(problem)
    print(f"{found['wheel']}: {len(found['problems'])} of {found['names']} names are gone or changed")
    raise SystemExit(1 if found["problems"] else 0)


if __name__ == "__main__":
    main()
