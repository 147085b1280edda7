# SPDX-License-Identifier: Apache-2.0
"""Variants of PRIME: chosen by name, overridden key by key, and named as what they are."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from prime_ext.config.compose import compose_config
from prime_ext.config.settings import PrimeSettings, SettingsError
from prime_ext.config.variant import VARIANTS, keys_of, variant_line


def composed(*overrides, name="prime_trainer"):
    return compose_config(name, ["actor_rollout_ref.model.path=model", *overrides])


def gates(config):
    return PrimeSettings.from_mapping(OmegaConf.to_container(config.prime)).gates


@pytest.mark.parametrize("name", ["prime_trainer", "prime_trainer_cpu"])
def test_distilled_is_the_default_and_the_paper_has_no_gate(name):
    assert variant_line(composed(name=name)) == "distilled" and gates(composed(name=name))
    paper = composed("variant=paper", name=name)
    assert variant_line(paper) == "paper" and not gates(paper)


def test_nothing_but_the_gate_is_different():
    paper, guarded = (OmegaConf.to_container(composed(f"variant={name}")) for name in ("paper", "guarded"))
    for config in (paper, guarded):
        del config["prime"]["variant"], config["prime"]["process"]["reliability_gate"]
    assert paper == guarded


def test_overrides_win_and_are_named():
    words = ["variant=paper", "prime.process.reliability_gate=true", "prm.loss=dpo", "prime.filter.lower=0.1"]
    for order in (words, words[::-1]):
        config = composed(*order)
        assert config.prime.process.reliability_gate is True and config.prm.loss == "dpo"
        assert variant_line(config) == "paper (changed: prime.process.reliability_gate=true, prm.loss=dpo)"
    # Of what the gate alone reads, as much as the variant says.
    changed = composed("variant=guarded", "prime.process.gate_decay=0.5", "prime.whitening=null")
    assert variant_line(changed) == "guarded (changed: prime.whitening=null, prime.process.gate_decay=0.5)"
    # A recipe names one, and who starts it may name another.
    assert variant_line(composed("variant=paper", "variant=guarded")) == "guarded"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_file_is_a_variant_of_its_own_name_with_keys_that_exist(variant):
    config = composed(f"variant={variant}")
    assert config.prime.variant == variant == variant_line(config)
    assert all(OmegaConf.select(config, key, default="missing") == value for key, value in keys_of(variant).items())


def test_a_variant_that_is_none_is_one_line():
    with pytest.raises(SettingsError, match="Could not find 'variant/papre'"):
        composed("variant=papre")
    with pytest.raises(SettingsError, match="prime.variant='papre' is not one of distilled, guarded, paper"):
        gates(composed("prime.variant=papre"))


def test_verls_own_command_takes_the_variant():
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-path=pkg://prime_ext.config"]
    words = ["--config-name=prime_trainer", "variant=paper", "prime.process.warm_up_steps=3", "--cfg=job"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    process = OmegaConf.create(done.stdout).prime.process
    assert (process.reliability_gate, process.warm_up_steps) == (False, 3)


def test_the_first_line_of_a_run_names_it(monkeypatch, capsys, tmp_path):
    from prime_ext import train

    config = composed("variant=paper", "prime.whitening=false", f"trainer.default_local_dir={tmp_path}")
    monkeypatch.setattr(train, "preflight", lambda name, overrides: (config, []))
    monkeypatch.setattr(sys, "argv", ["train", "variant=paper"])
    monkeypatch.setattr("verl.trainer.main_ppo.main", lambda: None)
    train.main()
    assert capsys.readouterr().out.splitlines()[0] == "prime_ext: PRIME, variant paper (changed: prime.whitening=false)"
