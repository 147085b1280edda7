# SPDX-License-Identifier: Apache-2.0
"""``prime-ext COMMAND ...`` or ``python -m prime_ext COMMAND ...``: all programs of the package."""

import runpy
import sys

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
}


def main() -> None:
    """Run the named program with the words that follow its name."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print("usage: prime-ext COMMAND ... (prime-ext COMMAND --help)\n")
        for name, (_, line) in COMMANDS.items():
            print(f"  {name:<12} {line}")
        raise SystemExit(0 if words else 2)
    if words[0] not in COMMANDS:
        raise SystemExit(f"prime-ext: {words[0]} is not a command; they are {', '.join(COMMANDS)}")
    printing = ["--cfg=job"] if words[0] == "config" else []
    sys.argv = [f"prime-ext {words[0]}", *printing, *words[1:]]
    runpy.run_module(COMMANDS[words[0]][0], run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
