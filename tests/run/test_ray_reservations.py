# SPDX-License-Identifier: Apache-2.0
"""Logical CPUs: what verl reserves, on this machine and in a cluster."""

import os

import pytest
import torch

from prime_ext import train
from prime_ext.config.compose import compose_config
from prime_ext.run.ray_reservations import (
    ClusterTooSmall,
    check_own_cpus,
    check_own_gpus,
    require_resources,
)

SEPARATE = [
    "actor_rollout_ref.hybrid_engine=false",
    "actor_rollout_ref.rollout.nnodes=2",
    "actor_rollout_ref.rollout.n_gpus_per_node=4",
    "trainer.v1.trainer_mode=prime_separate_async",
]
NODE = ["trainer.n_gpus_per_node=8", "transfer_queue.backend.SimpleStorage.num_data_storage_units=8"]


def node(cpus, alive=True):
    """One of those that Ray lists."""
    return {"Alive": alive, "Resources": {"CPU": float(cpus), "GPU": 8.0}}


def composed(*words):
    return compose_config("prime_trainer", words)


@pytest.mark.parametrize(
    ("words", "cpus"), [([], 3 * 8 + 1 + 8), (["trainer.nnodes=2"], 3 * 16 + 1 + 8), (SEPARATE, 3 * 8 + 2 * 8 + 1 + 8)]
)
def test_a_machine_with_too_few_is_told_before_ray_starts(monkeypatch, words, cpus):
    config = composed(*NODE, *words)
    monkeypatch.setattr(os, "cpu_count", lambda: cpus - 1)
    (problem,) = check_own_cpus(config)
    assert f"num_cpus={cpus - 1}: verl reserves {cpus} logical" in problem and "Ray would wait forever" in problem
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    assert list(check_own_cpus(config)) == []
    assert len(list(check_own_cpus(composed(*NODE, "ray_kwargs.ray_init.num_cpus=8")))) == 1


def test_a_running_cluster_is_judged_by_what_it_has(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    config = composed(*NODE, "+ray_kwargs.ray_init.address=auto")
    assert list(check_own_cpus(config)) == []
    require_resources(config, [node(33)])
    require_resources(config, [node(24), node(9)])
    for nodes in ([node(32)], [node(32), node(8, alive=False)], [{"Alive": True, "Resources": {}}], []):
        with pytest.raises(ClusterTooSmall, match=r"logical CPUs, and verl reserves 33 .* --num-cpus$"):
            require_resources(config, nodes)


def test_the_ranks_of_a_node_are_on_one():
    config = composed(*NODE, "trainer.nnodes=2")
    require_resources(config, [node(32), node(32)])
    for nodes in ([node(60), node(23)], [node(20)] * 4):
        with pytest.raises(ClusterTooSmall, match=r"\d of \d nodes have the 24 logical CPUs .* trainer.nnodes=2"):
            require_resources(config, nodes)


def test_a_run_on_accelerators_is_checked_when_it_starts(monkeypatch):
    for name in ("check_config", "check_files"):
        monkeypatch.setattr(f"prime_ext.preflight.check.{name}", lambda config: [])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    problems = train.preflight("prime_trainer", NODE)[1]
    assert [problem.split()[0] for problem in problems] == ["ray_kwargs.ray_init.num_cpus=4:", "this"]


SCORER = ["trainer.n_gpus_per_node=4", "step_scorer.actor.num_gpus=1", "step_scorer.model_path=step_rm"]


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("prime_trainer", ["trainer.n_gpus_per_node=8"], "8 (trainer.n_gpus_per_node); lower trainer.n_gpus_per_node"),
        ("prime_trainer", [*SEPARATE, "trainer.n_gpus_per_node=1"], "1 (trainer.n_gpus_per_node) + 8 (rollout servers"),
        (
            "pspo_trainer",
            SCORER,
            "4 (trainer.n_gpus_per_node) + 1 (step_scorer.actor.num_gpus); lower trainer",
        ),
    ],
)
def test_a_machine_without_the_gpus_is_told_before_ray_starts(four_gpus, name, words, said):
    (problem,) = check_own_gpus(compose_config(name, words))
    assert f"this machine has 4 GPUs, and the run wants {said}" in problem
    assert ("step_scorer.actor.num_gpus=0 and step_scorer.actor.cpu_threads=16" in problem) == (name == "pspo_trainer")


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.n_gpus_per_node=3", *SCORER[1:]],
        [SCORER[0]],
        # Ray is told, or there already.
        [*SCORER, "+ray_kwargs.ray_init.num_gpus=5"],
        [*SCORER, "+ray_kwargs.ray_init.address=auto"],
        [*SCORER, "trainer.device=npu"],
    ],
)
def test_a_machine_with_the_gpus_is_fine(four_gpus, words):
    assert list(check_own_gpus(compose_config("pspo_trainer", words))) == []


def test_the_scorer_finds_a_gpu_on_every_node_of_a_cluster(monkeypatch):
    config = compose_config("pspo_trainer", [*SCORER, "trainer.n_gpus_per_node=8", "trainer.nnodes=2"])
    with pytest.raises(ClusterTooSmall, match=r"have 8, 8 GPUs, .*actor.num_gpus=1 on each beside .*=8; lower"):
        require_resources(config, [node(64), node(64)])
    large = node(64)
    large["Resources"]["GPU"] = 9.0
    require_resources(config, [large, large])


def test_the_platform_of_the_cpu_is_not_left_over_for_a_run_on_gpus(four_gpus, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "CPU")
    (problem,) = check_own_gpus(composed(*NODE))
    assert problem.startswith("VERL_PLATFORM=cpu is in the environment") and "unset VERL_PLATFORM" in problem
    assert list(check_own_gpus(compose_config("prime_trainer_cpu", []))) == []
