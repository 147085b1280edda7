# SPDX-License-Identifier: Apache-2.0
"""Command lines of evaluation and data: options of one name are alike, mistakes are one line."""

import argparse
from collections import defaultdict
from importlib import import_module

import pytest

from prime_ext.__main__ import COMMANDS, FOLDERS
from prime_ext.utils.arguments import Parser

MAINS = {
    name: f"{FOLDERS[module.rpartition('.')[0]]}.{module.rpartition('.')[2]}"
    for name, (module, _) in COMMANDS.items()
    if module.rpartition(".")[0] in FOLDERS
}
# A name with two meanings each, which the pages describe.
TWO_MEANINGS = {"--input", "--split", "--splits", "--data"}
# Backends have fewer choices of their own here than programs that load a PRM.
OF_MODELS = {"--model", "--device", "--dtype"}


def parsers(program, monkeypatch):
    """Return the parser of a program, and those of its commands."""
    seen = []

    def keep(parser, *_):
        seen.append(parser)
        raise KeyboardInterrupt

    monkeypatch.setattr(Parser, "parse_args", keep)
    monkeypatch.setattr(Parser, "parse_intermixed_args", keep)
    assert import_module(MAINS[program]).main([]) == 130
    commands = [
        action for action in seen[0]._actions if isinstance(action, argparse._SubParsersAction)
    ]
    return [*seen, *(parser for action in commands for parser in action.choices.values())]


def test_options_of_one_name_have_one_check_and_one_destination(monkeypatch):
    meanings = defaultdict(set)
    for program in MAINS:
        for parser in parsers(program, monkeypatch):
            for action in parser._actions:
                for name in action.option_strings:
                    meanings[name].add((action.type, action.dest, type(action)))
    assert len(meanings) > 60 and {"--output-dir", "--output", "--seed", "--limit"} <= set(meanings)
    different = {name for name, kinds in meanings.items() if len(kinds) > 1}
    assert different - OF_MODELS <= TWO_MEANINGS


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("eval", ["--seed", "-1"], "--seed: '-1' must be a whole number from 0"),
        ("eval-prm", ["prmbench", "--limit", "0"], "--limit: '0' must be a whole number from 1"),
        ("data selection", ["--min-solvable", "2"], "--min-solvable: '2' must be from 0 to 1"),
        ("data pipeline", ["math", "--split", "0"], "must be above 0 and at most 1"),
        ("data reasoning-gym", ["gcd"], "required: --output-dir/--output"),
        ("data pipeline", ["maths", "--output", "x"], "no settings at"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(program, words, message, capsys):
    assert import_module(MAINS[program]).main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
