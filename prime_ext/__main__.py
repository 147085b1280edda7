# SPDX-License-Identifier: Apache-2.0
"""``prime-ext COMMAND ...`` and ``python -m prime_ext COMMAND ...``: the package's programs under one name."""

import runpy
import sys
from importlib.util import find_spec

# Name, module, what it does. Those of the second table are in a checkout only.
COMMANDS = {
    "train": ("prime_ext.train", "PRIME and PSPO-WRS through verl; words are overrides of its configuration"),
    "sft": ("prime_ext.sft", "verl's SFT trainer, for the start of both"),
    "offline-prm": ("prime_ext.offline_prm", "train an implicit PRM from labelled responses"),
    "step-rm": ("prime_ext.step_rm.train", "train a step reward model"),
    "doctor": (
        "prime_ext.doctor",
        "what is installed and what is missing; --plan: memory, time and disk space of a run",
    ),
    "export": ("prime_ext.generate.export", "policy or PRM of a checkpoint as a Hugging Face folder"),
    "check": ("prime_ext.run.check_metrics", "whether a finished run was what it should be"),
}
OF_A_CHECKOUT = {
    "eval": ("eval.run", "evaluate a model on benchmarks"),
    "eval-prm": ("eval.prm", "evaluate a process reward model"),
    "data": ("data_preprocessing.pipeline", "make RL data"),
}


def main() -> None:
    """Run the named program with the words behind its name."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print("usage: prime-ext COMMAND ... (prime-ext COMMAND --help)\n")
        for name, (_, line) in {**COMMANDS, **OF_A_CHECKOUT}.items():
            print(f"  {name:<12} {line}{' (in a checkout)' if name in OF_A_CHECKOUT else ''}")
        raise SystemExit(0 if words else 2)
    name = words[0]
    if name in OF_A_CHECKOUT:
        # The folder of the checkout is no installed package.
        sys.path.insert(0, "")
        module = OF_A_CHECKOUT[name][0]
        if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
            raise SystemExit(
                f"prime-ext {name}: {module} is not part of the package; run it in a checkout of the repository"
            )
    elif name in COMMANDS:
        module = COMMANDS[name][0]
    else:
        known = ", ".join([*COMMANDS, *OF_A_CHECKOUT])
        raise SystemExit(f"prime-ext: {name} is not a command; they are {known}")
    sys.argv = [f"prime-ext {name}", *words[1:]]
    runpy.run_module(module, run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
