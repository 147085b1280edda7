# SPDX-License-Identifier: Apache-2.0
"""``prime-ext COMMAND ...`` or ``python -m prime_ext COMMAND ...``: all programs of the package."""

import runpy
import sys
from pathlib import Path

# Packages of the wheel that are folders next to prime_ext in the repository (setup.py).
FOLDERS = {"prime_ext.evaluation": "eval", "prime_ext.data": "data_preprocessing"}
# Module and what it does, by name.
COMMANDS = {
    "train": (
        "prime_ext.train",
        "PRIME and PSPO-WRS through verl; words are overrides of its configuration",
    ),
    "config": (
        "prime_ext.train",
        "print the configuration that a variant and other overrides give, verl's keys too",
    ),
    "transcripts": (
        "prime_ext.transcripts",
        "a page of a run's rollouts: why did this response get its reward?",
    ),
    "offline-prm": ("prime_ext.offline_prm", "train an implicit PRM from labeled responses"),
    "step-rm": ("prime_ext.step_rm.train", "train a step reward model"),
    "doctor": (
        "prime_ext.doctor",
        "what is installed and what is missing; --plan: memory of a run",
    ),
    "export": (
        "prime_ext.generate.export",
        "policy or PRM of a checkpoint as a Hugging Face folder",
    ),
    "eval": ("prime_ext.evaluation.run", "evaluate a model on math, code and numeric reasoning"),
    "eval-grade": ("prime_ext.evaluation.grade", "judge the responses of a run or of a file"),
    "eval-prm": ("prime_ext.evaluation.prm", "evaluate a process reward model"),
    "eval-report": ("prime_ext.evaluation.report", "reports of runs, and the papers' tables"),
    "eval-compare": ("prime_ext.evaluation.compare", "compare two runs problem by problem"),
    "data pipeline": ("prime_ext.data.pipeline", "RL data from sources, filters and settings"),
    "data validate": ("prime_ext.data.validate", "check files of RL rows before a run does"),
    "data numeric-reasoning": ("prime_ext.data.numeric_reasoning", "the six numeric sets as rows"),
    "data reasoning-gym": ("prime_ext.data.reasoning_gym", "problems of reasoning-gym as rows"),
    "data environment": (
        "prime_ext.data.environment",
        "episodes of environments as rows",
    ),
    "data rewrite-choice": (
        "prime_ext.data.rewrite_choice",
        "multiple choice as open questions, by a model",
    ),
    "data validate-votes": ("prime_ext.data.validate_votes", "votes of a model on math problems"),
    "data selection": ("prime_ext.data.selection", "select problems by these votes"),
    "data step-labels": (
        "prime_ext.data.step_labels",
        "labels of steps, by continuations or a judge",
    ),
    "data sft-data": ("prime_ext.data.sft_data", "responses of a teacher as chats for SFT"),
}


def find_module(module: str) -> str:
    """Return the name by which a module runs here: in a checkout, folders are packages."""
    root = Path(__file__).resolve().parents[1]
    package, _, name = module.rpartition(".")
    if package not in FOLDERS or not (root / "pyproject.toml").is_file():
        return module
    sys.path.insert(0, str(root))
    return f"{FOLDERS[package]}.{name}"


def main() -> None:
    """Run the named program with the words that follow its name."""
    words = sys.argv[1:]
    # Programs for data have names of two words.
    group = "data " if words[:1] == ["data"] else ""
    words = words[1:] if group else words
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: prime-ext {group}COMMAND ... (prime-ext {group}COMMAND --help)\n")
        for name, (_, line) in COMMANDS.items():
            if name.startswith(group):
                print(f"  {name:<22} {line}")
        raise SystemExit(0 if words else 2)
    name = group + words[0]
    if name not in COMMANDS:
        raise SystemExit(f"prime-ext: {name} is not a command; they are {', '.join(COMMANDS)}")
    printing = ["--cfg=job"] if name == "config" else []
    sys.argv = [f"prime-ext {name}", *printing, *words[1:]]
    runpy.run_module(find_module(COMMANDS[name][0]), run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
