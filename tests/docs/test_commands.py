# SPDX-License-Identifier: Apache-2.0
"""Commands of the pages: the program that each one starts takes its words; those that are not tried have a reason."""

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest
from pages import PAGES, ROOT, shell_blocks

from prime_ext.config.compose import SFT_CONFIG, compose_config

# Programs of others, and why a page's command of theirs is not run.
NOT_RUN = {
    "pip": "tests/run.sh installs from the same files",
    "python3.12": "a fresh machine's interpreter",
    "docker": "needs a builder; of its build arguments tests/docs/test_install_doc.py knows",
    "vllm": "tests/e2e/test_vllm_cpu.py and tests/reward start servers",
    "sbatch": "needs SLURM",
    "hf": "needs the hub",
    "mutmut": "hours",
    "source": "a shell's",
    "export": "a shell's",
    "done": "a shell's",
    **dict.fromkeys(("ruff", "mypy", "lint-imports"), "of whoever changes the code"),
}
# Modules that take overrides of a configuration instead of options, and its name.
COMPOSED = {
    "prime_ext.train": "prime_trainer",
    "verl.trainer.main_ppo": "prime_trainer",
    "prime_ext.sft": SFT_CONFIG,
    "prime_ext.offline_prm": "offline_prm",
    "prime_ext.step_rm.train": "step_rm",
}
PARSERS = ("parse_args", "parse_intermixed_args", "parse_known_args")
# Scripts that read their few words themselves.
WITHOUT_PARSER = {"docs/write_memory_tables.py", "tests/mutants/sample.py", "tests/offline_prm/tiny_prm.py"}
# What stands for words that a page does not repeat.
REST = {"...", "...]", "[RUN"}
# "First$ " and the like: which machine of several.
PROMPT = re.compile(r"^\w+\$ ")


class Parsed(Exception):
    """The program took its words; it need not go on."""


def commands_of(page):
    """Word lists of a page's commands, and the variables set in front of each."""
    given = {}
    for block in shell_blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            for words in _simple_commands(PROMPT.sub("", line)):
                knobs = {}
                while words and re.match(r"[A-Za-z_]\w*=", words[0]):
                    name, _, value = words.pop(0).partition("=")
                    knobs[name] = value
                if words:
                    yield tuple(part for word in words for part in _expanded(word, given)), tuple(knobs)
                else:
                    given |= knobs


def _simple_commands(line):
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = []
    for word in [*lexer, ";"]:
        if word not in (";", "&&", "|"):
            words.append(word)
        elif words:
            if words[0] in ("do", "then"):
                words.pop(0)
            if words and words[0] != "for":
                yield words
            words = []


def _expanded(word, given):
    name = word.removeprefix("$")
    return given[name].split() if word != name and name in given else [word]


def cases():
    for page in PAGES:
        for words, knobs in commands_of(page):
            yield pytest.param(words, knobs, id=f"{page.relative_to(ROOT)}: {' '.join(words)[:80]}")


@pytest.mark.parametrize(("words", "knobs"), cases())
def test_the_program_takes_the_words(words, knobs, monkeypatch):
    program = words[0]
    if program == "bash":
        # A page beside its script names it alone.
        script = next(
            folder / words[1] for folder in (ROOT, ROOT / "recipes/verl_recipe") if (folder / words[1]).exists()
        )
        takes_a_script(script, words[2:], knobs)
    elif program == "python":
        words = [word for word in words[1:] if word not in REST]
        if words[0] == "-m":
            takes_a_module(words[1], words[2:], monkeypatch)
        elif words[0] in WITHOUT_PARSER:
            assert (ROOT / words[0]).is_file()
        else:
            parses(lambda: runpy.run_path(str(ROOT / words[0]), run_name="__main__"), words, monkeypatch)
    elif "=" in program or program in REST:
        # What a page adds to a command of prime_ext.train that it has shown before.
        composes("prime_trainer", [word for word in words if word not in REST])
    elif program.startswith("--"):
        # The same of whatever generates.
        takes_a_module("eval.run", ["--tasks", "gsm8k", "--output", "OUT", *words], monkeypatch)
    else:
        assert program in NOT_RUN
        if "python" in words and words[words.index("python") + 1] == "-m":
            # In a container.
            module, *rest = words[words.index("python") + 2 :]
            takes_a_module(module, rest, monkeypatch)


def is_command(module):
    """Whether ``python -m`` finds it."""
    spec = find_spec(module)
    return spec is not None and (spec.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None)


def takes_a_module(module, words, monkeypatch):
    assert is_command(module), f"python -m {module}"
    if module == "prime_ext.doctor" and "--plan" in words:
        composes(*configuration_of("prime_ext.train", [word for word in words[1:] if not word.isdecimal()]))
    elif module in COMPOSED:
        composes(*configuration_of(module, words))
    else:
        parses(lambda: runpy.run_module(module, run_name="__main__"), [module, *words], monkeypatch)


def parses(start, argv, monkeypatch):
    """The program's parser takes the words; nothing behind it runs."""
    for name in PARSERS:
        monkeypatch.setattr(argparse.ArgumentParser, name, _stopping(getattr(argparse.ArgumentParser, name)))
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(Parsed):
        start()


def _stopping(parse):
    def parse_and_stop(parser, *arguments, **options):
        found = parse(parser, *arguments, **options)
        # A parser calls itself, and those of its subcommands.
        if sys._getframe(1).f_globals["__name__"] != "argparse":
            raise Parsed
        return found

    return parse_and_stop


def configuration_of(module, words):
    name = COMPOSED[module]
    for word in words:
        if word.startswith("--config-name="):
            name = word.partition("=")[2]
    if "--config-name" in words:
        place = words.index("--config-name")
        name = words[place + 1]
        words = [*words[:place], *words[place + 2 :]]
    return name, [word for word in words if not word.startswith("--")]


def composes(name, overrides):
    """Hydra knows every key."""
    assert compose_config(name, overrides) is not None


def takes_a_script(script, words, knobs):
    """It is there, its help names the variables in front of it, and it wants no more words than it is given."""
    done = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for knob in knobs:
        assert re.search(rf"\b{knob}\b", done.stdout), f"{knob} is not in the help of {script.name}"
    least = re.search(r"^begin (\d+)", script.read_text(), re.M)
    assert len([word for word in words if "=" not in word]) >= int(least[1] if least else 0)
