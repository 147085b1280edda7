# SPDX-License-Identifier: Apache-2.0
"""What the PRM makes of its configuration, and what it refuses in one line."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tiny_llama import save_llama

from prime_ext.config.settings import PRMSettings, SettingsError
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.prm.plan import plan_mini_batches

FUSED = "prm.model.use_fused_kernels=true"


@pytest.mark.parametrize(("reference", "temperature"), [("policy", 0.6), ("kl", 0.6), ("frozen", 1.0), ("none", 1.0)])
def test_both_sides_of_the_ratio_have_the_same_temperature(config, prm_settings, reference, temperature):
    config = OmegaConf.merge(config, {"actor_rollout_ref": {"rollout": {"temperature": 0.6}}})
    prm = ImplicitPRM(config, prm_settings(reference=reference))
    assert prm.temperature == temperature == prm._update_options()["temperature"]


def test_mini_batches_are_counted_in_prompts(config, prm_settings):
    prm = ImplicitPRM(config, prm_settings(mini_batch_size=3))
    assert prm.mini_batch_rows == 12
    keys = [f"{prompt:03d}_{session}_0" for prompt in range(6) for session in range(4)]
    plan = plan_mini_batches(keys, [False] * 24, [5] * 24, prm.mini_batch_rows, data_parallel_size=1)
    assert {keys[row][:3] for row in plan.order[:12]} == {"000", "001", "002"}


def worker_configs(tmp_path, name, overrides):
    """What the workers of the PRM and of its reference are built from."""
    save_llama(tmp_path)
    own = [f"actor_rollout_ref.model.path={tmp_path}", "prm.reference=frozen"]
    own.append("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4000")
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose(name, [*own, *overrides])
    prm = ImplicitPRM(config, PRMSettings.from_mapping(OmegaConf.to_container(config.prm, resolve=True)))
    return {group: worker.kwargs["config"] for group, worker in prm.worker_classes().items()}


@pytest.mark.parametrize(
    ("name", "overrides", "tokens"),
    [
        ("prime_trainer", [FUSED], (4000, 16000)),
        ("prime_trainer", ["prm.infer_max_token_len_per_gpu=9000"], (4000, 9000)),
        ("prime_trainer", [FUSED, "prm.use_dynamic_bsz=false", "prm.micro_batch_size_per_gpu=2"], (4000, None)),
        ("prime_trainer_cpu", [FUSED], (4000, 4000)),
    ],
)
def test_the_prm_and_its_reference_have_the_same_budgets(tmp_path, name, overrides, tokens):
    """Passes without gradients are packed into more tokens than a training pass has."""
    for worker in worker_configs(tmp_path, name, overrides).values():
        engine = worker.engine_config
        assert (engine.max_token_len_per_gpu, engine.infer_max_token_len_per_gpu) == tokens


def test_the_prm_trains_as_configured_and_its_reference_is_weights_alone(tmp_path):
    overrides = ["prm.optim.lr=3e-5", "prm.checkpoint.load_contents=[model,optimizer]"]
    prm, reference = worker_configs(tmp_path, "prime_trainer_cpu", overrides).values()
    assert prm.optimizer_config.lr == 3e-5 and prm.checkpoint_config.load_contents == ["model", "optimizer"]
    assert reference.checkpoint_config.save_contents == reference.checkpoint_config.load_contents == ["model"]


REPLAY = {"batches": 2, "ratio": 1.0}
BIAS = {"enable": True, "lr": 0.05, "init": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "prm.epochs=0"),
        ({"replay": REPLAY, "reference": "policy"}, "prm.replay.batches=2 .* prm.reference "),
        ({"replay": REPLAY, "loss": "nca"}, "prm.replay.batches=2 .* prm.loss=nca"),
        ({"bias": {**BIAS, "start": 0.0}}, "unknown key prm.bias.start; .* enable, init, lr"),
        ({"bias": BIAS, "loss": "dpo", "update_mode": "after"}, "prm.bias.enable=true .* prm.loss=dpo"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(prm_settings, changes, message):
    with pytest.raises(SettingsError, match=f"^{message}[^\n]*$"):
        prm_settings(**changes)
