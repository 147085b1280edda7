# SPDX-License-Identifier: Apache-2.0
"""Passes without gradients: the PRM and its reference pack alike, into more tokens than a training pass has."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tiny_llama import save_llama

from prime_ext.config.settings import PRMSettings
from prime_ext.prm.implicit_prm import ImplicitPRM

FUSED = "prm.model.use_fused_kernels=true"


@pytest.mark.parametrize(
    ("name", "words", "tokens"),
    [
        ("prime_trainer", [FUSED], (4000, 16000)),
        ("prime_trainer", [], (4000, 4000)),
        ("prime_trainer", ["prm.infer_max_token_len_per_gpu=9000"], (4000, 9000)),
        ("prime_trainer", [FUSED, "prm.use_dynamic_bsz=false", "prm.micro_batch_size_per_gpu=2"], (4000, None)),
        ("prime_trainer_cpu", [FUSED], (4000, 4000)),
    ],
)
def test_both_engines_have_the_same_budgets(tmp_path, name, words, tokens):
    save_llama(tmp_path)
    own = [f"actor_rollout_ref.model.path={tmp_path}", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4000"]
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose(name, [*own, *words])
    prm = ImplicitPRM(config, PRMSettings.from_mapping(OmegaConf.to_container(config.prm, resolve=True)))
    for path in (None, str(tmp_path)):
        engine = prm._worker_config(path).engine_config
        assert (engine.max_token_len_per_gpu, engine.infer_max_token_len_per_gpu) == tokens
