# SPDX-License-Identifier: Apache-2.0
"""Results for users, in a few numbers that a redesign must not move.

``python tests/goldens/measure.py`` writes goldens.json: data by its bytes, verdicts one by one, the
plan that a dry run prints, and what four methods learn in a few steps of examples/minimal_prime.py,
which uses the functions of training.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from prime_ext.verifiers.math import MathVerifier
from recipes.studies import laboratory

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("e2e", "support")]
from forked_workers import python as forks  # noqa: E402

FILE = Path(__file__).with_name("goldens.json")
RECIPES = {
    "prime/run_eurus2-7b_fsdp.sh": (),
    "prime/run_eurusprm-stage1_fsdp.sh": (),
    "pspo_wrs/run_abel-7b_ppo_fsdp.sh": ("GAIR/Abel-7B-002", "no/step_rm", "no.parquet",
     "no.parquet"),
}  # fmt: skip
METHODS = ("rloo", "paper", "guarded", "distilled")


def call(*words: str, **environment: str) -> str:
    """Return what a command prints; it must succeed."""
    known = os.environ | {"PYTHON": forks(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=known | environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:4])}: {done.stderr[-2000:]}")
    return done.stdout


def python(module: str, *words: object) -> str:
    return call(forks(), "-m", module, *map(str, words))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def data(folder: Path) -> dict[str, str]:
    """Return digests of the quickstart's rows, the pipeline's, and the numeric sets'."""
    fixtures = ROOT / "tests" / "data" / "fixtures"
    python("recipes.quickstart.quickstart_data", "--output-dir", folder / "quickstart", "--seed", 0)
    settings = ROOT / "data_preprocessing" / "settings" / "gsm8k_math.yaml"
    python(
        "data_preprocessing.pipeline",
        settings,
        f"data_dir={fixtures}",
        "--output-dir",
        folder / "pipeline",
    )
    python(
        "data_preprocessing.numeric_reasoning",
        "--data-dir",
        fixtures,
        "--output-dir",
        folder / "numeric",
    )
    return {
        str(path.relative_to(folder)): digest(path) for path in sorted(folder.glob("*/*.parquet"))
    }


def verdicts() -> dict[str, str]:
    """Return the verdict on every pair of mathematics, as one letter each."""
    lines = (ROOT / "tests" / "verifiers" / "math" / "pairs.jsonl").read_text().splitlines()
    verifier = MathVerifier()
    judged = [verifier.verify_answer(pair["pred"], pair["gold"]) for pair in map(json.loads, lines)]
    return {"mathematics": "".join(str(verdict.outcome)[0] for verdict in judged)}


def plans() -> dict[str, list[str]]:
    """Return the lines of dry runs, less what only says that this machine lacks flash-attn."""
    outputs = {
        name: call("bash", f"recipes/{name}", *words, DRY_RUN="1", STEPS="170")
        for name, words in RECIPES.items()
    }
    plain = {
        name: text.replace(forks(), "python").replace(str(ROOT), "")
        for name, text in outputs.items()
    }
    return {
        name: [line for line in text.splitlines() if "flash-attn is not installed" not in line]
        for name, text in plain.items()
    }


def learning(folder: Path) -> dict[str, Any]:
    """Return the curves of short runs of examples/minimal_prime.py."""
    study = {"name": "golden", "task": {}, "rollouts": 320}
    kept = ("rollouts", "accuracy", "step_accuracy", "pair_accuracy", "gate")
    curves = {}
    for method in METHODS:
        curve = laboratory.run(study, method, [], 0, folder)
        n_points = len(curve["rollouts"])
        points = [
            {key: curve.get(key, [None] * n_points)[point] for key in kept}
            for point in range(n_points)
        ]
        curves[f"{method}_seed0"] = points
    return curves


RUNS = {
    "rloo": ["variant=rloo"],
    "paper": ["variant=paper"],
    "guarded": ["variant=guarded", "prime.process.gate.start=0.8"],
    "distilled": ["variant=distilled", "prime.process.gate.start=0.8"],
}


def training(folder: Path) -> dict[str, Any]:
    """Return metrics of two steps of small runs through verl's main."""
    import e2e_harness as harness

    harness.write_inputs(folder)
    measured = {}
    for name, overrides in RUNS.items():
        # In float32 the rounding of a batch can move a token across the boundary of its interval.
        fixed = [
            "trainer.total_training_steps=2",
            "trainer.test_freq=-1",
            "actor_rollout_ref.rollout.dtype=float64",
        ]
        harness.run(folder, folder / name, [*overrides, *fixed])
        steps = harness.metrics(folder / name)
        measured[name] = {
            str(step): dict(sorted(harness.repeatable(steps[step]).items())) for step in steps
        }
    return measured


def measure(whole_runs: bool = False) -> dict[str, Any]:
    """Measure every part; ``whole_runs`` also trains through verl, for comparisons by hand."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {
            "data": data(folder),
            "verdicts": verdicts(),
            "plans": plans(),
            "learning": learning(folder),
        }
        return parts | {"training": training(folder)} if whole_runs else parts


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(whole_runs=True), indent=1) + "\n")
