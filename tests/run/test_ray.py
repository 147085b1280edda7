# SPDX-License-Identifier: Apache-2.0
"""A run on Ray: what reaches a running cluster's workers, what is reserved, what is refused."""

import os
import socket
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import grpc
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from prime_ext import train
from prime_ext.config.compose import compose_config
from prime_ext.run.ray_cluster import (
    check_cluster,
    check_ray,
    environment_words,
    find_address,
    require_resources,
)
from prime_ext.utils.files import write_json
from prime_ext.utils.run_store import RunError
from recipes.smoke.prepare import overrides, prepare

VARIABLES = "++ray_kwargs.ray_init.runtime_env.env_vars."


def get_config(**init):
    return OmegaConf.create({"ray_kwargs": {"ray_init": init}})


def test_the_address_comes_from_the_configuration_or_the_environment(monkeypatch):
    assert find_address(get_config()) is None and find_address(get_config(address="local")) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert (
        find_address(get_config()) == "10.0.0.1:6379"
        and find_address(get_config(address="h:1")) == "h:1"
    )
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert find_address(get_config()) is None


def test_what_recipes_set_reaches_the_workers_and_secrets_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = {
        "VERL_FILE_LOGGER_PATH": "out/metrics.jsonl",
        "PYTHONPATH": "code:/lib",
        "VERL_PLATFORM": "cpu",
    }
    environment |= {"WANDB_API_KEY": "secret", "NCCL_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": ""}
    assert environment_words(get_config(address="h:1"), environment) == [
        f"{VARIABLES}VERL_FILE_LOGGER_PATH='{tmp_path}/out/metrics.jsonl'",
        f"{VARIABLES}PYTHONPATH='{tmp_path}/code:/lib'",
        f"{VARIABLES}VERL_PLATFORM='cpu'",
    ]
    # Ray that the run starts itself inherits all of it.
    assert environment_words(get_config(), environment) == []
    # What the configuration sets stays.
    config = get_config(address="h:1", runtime_env={"env_vars": {"OMP_NUM_THREADS": "4"}})
    assert environment_words(config, {"OMP_NUM_THREADS": "1"}) == []


@pytest.mark.parametrize("value", ["ignore,error::X", "it's", "a=b c", "{x: 1}"])
def test_any_value_survives_the_syntax_of_hydra(value):
    (word,) = environment_words(get_config(address="h:1"), {"PYTHONWARNINGS": value})
    assert OverridesParser.create().parse_override(word).value() == value


SEPARATE = ["actor_rollout_ref.hybrid_engine=false", "trainer.v1.trainer_mode=prime_separate_async"]
SEPARATE += ["actor_rollout_ref.rollout.nnodes=2", "actor_rollout_ref.rollout.n_gpus_per_node=4"]
NODE = [
    "trainer.n_gpus_per_node=8",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=8",
]
SCORER = [
    "trainer.n_gpus_per_node=4",
    "step_scorer.actor.num_gpus=1",
    "step_scorer.model_path=step_rm",
]
AUTO = "+ray_kwargs.ray_init.address=auto"


def node(cpus, gpus=8.0, alive=True):
    """Return a node such as those that Ray lists."""
    return {"Alive": alive, "Resources": {"CPU": float(cpus), "GPU": gpus}}


def composed(*words, name="prime_trainer"):
    return compose_config(name, words)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Pretend that this is a machine for GPUs with many CPUs."""
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 256)


@pytest.mark.parametrize(
    ("words", "cpus"), [([], 3 * 8 + 1 + 8), (SEPARATE, 3 * 8 + 2 * 8 + 1 + 8)]
)
def test_too_few_cpus_are_reported_before_ray_starts(monkeypatch, capsys, words, cpus):
    config = composed(*NODE, *words)
    monkeypatch.setattr(os, "cpu_count", lambda: cpus - 1)
    (problem,) = check_ray(config)
    assert (
        f"num_cpus={cpus - 1}: verl reserves {cpus} logical" in problem
        and "Ray would wait forever" in problem
    )
    # It is among the checks of a run that is to start.
    for name in ("check_config", "check_files"):
        monkeypatch.setattr(f"prime_ext.preflight.check.{name}", lambda config: [])
    with pytest.raises(SystemExit, match="2"):
        train.prepare_start("prime_trainer", [*NODE, *words])
    assert capsys.readouterr().err.endswith(f"prime_ext: {problem}\n")
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    assert list(check_ray(config)) == []
    assert len(list(check_ray(composed(*NODE, "ray_kwargs.ray_init.num_cpus=8")))) == 1


def test_several_nodes_need_an_address_and_a_running_cluster_nothing(monkeypatch):
    (problem,) = check_ray(composed(*NODE, "trainer.nnodes=2"))
    assert problem.startswith("trainer.nnodes=2 needs a Ray cluster of 2 nodes")
    monkeypatch.setattr(socket, "gethostname", lambda: "10.0.0.1")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert list(check_ray(composed(*NODE, "trainer.nnodes=2", AUTO))) == []


def test_cpu_mode_needs_its_platform_and_one_slot_per_rank(monkeypatch):
    config = composed("ray_kwargs.ray_init.num_gpus=0", name="prime_trainer_cpu")
    problems = list(check_ray(config))
    assert [problem.split()[0] for problem in problems] == [
        "trainer.device=cpu",
        "ray_kwargs.ray_init.num_gpus=0:",
    ]
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert list(check_ray(composed(name="prime_trainer_cpu"))) == []


ONE_NODE = composed(*NODE)
TWO_NODES = composed(*NODE, "trainer.nnodes=2")
WITH_SCORER = composed(
    *SCORER, "trainer.n_gpus_per_node=8", "trainer.nnodes=2", name="pspo_trainer"
)
TOO_FEW = r"logical CPUs, and verl reserves 33 .* --num-cpus$"
TOO_SMALL = r"\d of \d nodes have the 24 logical CPUs .* trainer.nnodes=2"
NO_GPU = r"have 8, 8 GPUs, .*actor.num_gpus=1 on each besides .*=8; lower"


@pytest.mark.parametrize(
    ("config", "nodes", "said"),
    [
        (ONE_NODE, [node(33)], None),
        (ONE_NODE, [node(24), node(9)], None),
        (ONE_NODE, [node(32)], TOO_FEW),
        (ONE_NODE, [node(32), node(8, alive=False)], TOO_FEW),
        (ONE_NODE, [{"Alive": True, "Resources": {}}], TOO_FEW),
        (TWO_NODES, [node(32), node(32)], None),
        (TWO_NODES, [node(60), node(23)], TOO_SMALL),
        (TWO_NODES, [node(20)] * 4, TOO_SMALL),
        (WITH_SCORER, [node(64, gpus=9.0)] * 2, None),
        (WITH_SCORER, [node(64)] * 2, NO_GPU),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(config, nodes, said):
    with pytest.raises(RunError, match=said) if said else nullcontext():
        require_resources(config, nodes)


def test_a_run_on_gpus_refuses_the_platform_of_the_cpu(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "CPU")
    (problem,) = check_ray(composed(*NODE))
    assert (
        problem.startswith("VERL_PLATFORM=cpu is in the environment")
        and "unset VERL_PLATFORM" in problem
    )


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that runs the command in CPU mode on a stand-in for verl's trainer."""
    prepare("prime", tmp_path / "inputs")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "json")

    def run(*words, main):
        monkeypatch.setitem(sys.modules, "verl.trainer.main_ppo", types.SimpleNamespace(main=main))
        given = [
            "train",
            "--config-name=prime_trainer_cpu",
            *overrides("prime", tmp_path / "inputs"),
        ]
        given += ["modules=[recipes.smoke.smoke_verifier]"]
        given += [f"trainer.default_local_dir={tmp_path}/checkpoints", *words]
        monkeypatch.setattr(sys, "argv", given)
        train.main()

    return run


class Head(grpc.GenericRpcHandler):
    """A head of Ray that answers requests, or, with a token, only those with this token."""

    def __init__(self, token=""):
        self._needed = ("authorization", f"Bearer {token}") if token else None

    def service(self, details):
        def answer(request, context):
            if self._needed and self._needed not in details.invocation_metadata:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: missing or wrong")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def run_head(token=""):
    """Yield the port of a head."""
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Head(token)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


@pytest.fixture
def port():
    """Return the port of a head without a token."""
    with run_head() as port:
        yield port


def test_user_modules_reach_the_workers_of_a_running_cluster(start, monkeypatch, port):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    start(main=lambda: None)
    assert (
        f"{VARIABLES}VERL_USE_EXTERNAL_MODULES='prime_ext.plugin,json,recipes.smoke.smoke_verifier'"
        in sys.argv
    )
    # A run that fails has its own status.
    with pytest.raises(SystemExit, match="7"):
        start(main=lambda: sys.exit(7))


def test_a_run_that_cannot_resume_does_not_start(start, tmp_path, capsys):
    marker = {"files": {}, "identity": {"data.seed": [1, 1]}}
    write_json(tmp_path / "checkpoints" / "global_step_2" / "prime_ext_complete.json", marker)
    with pytest.raises(SystemExit, match="2"):
        start("data.seed=2", main=lambda: pytest.fail("the run was started"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "global_step_2 was trained with data.seed 1, now it is 2; choose another" in line


@pytest.mark.parametrize(
    ("address", "left", "said"),
    [
        ("127.0.0.1:9", None, "RAY_ADDRESS=127.0.0.1:9 does not answer ("),
        ("nowhere", None, "RAY_ADDRESS=nowhere does not answer (it must be HOST:PORT)"),
        ("127.0.0.1:{port}", None, ""),
        ("", None, ""),
        ("", "127.0.0.1:{port}",
         "set RAY_ADDRESS=127.0.0.1:{port} to use it, or RAY_ADDRESS=local"),
        ("", "127.0.0.1:9", "run `ray stop`, or set RAY_ADDRESS=local"),
        ("local", "127.0.0.1:{port}", ""),
    ],
)  # fmt: skip
def test_dead_and_foreign_clusters_are_named_before_ray_waits(
    monkeypatch, tmp_path, port, address, left, said
):
    monkeypatch.setenv("RAY_ADDRESS", address.format(port=port))
    if left:
        (tmp_path / "ray_current_cluster").write_text(left.format(port=port))
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {"_temp_dir": str(tmp_path)}}})
    problems = [*check_cluster(config)]
    assert [said.format(port=port) in problem for problem in problems] == ([True] if said else [])


@pytest.mark.parametrize(
    ("known", "environment", "said"),
    [
        # Ray turns tokens on by itself only for a cluster that it starts.
        ("right", {}, ""),
        ("", {"RAY_AUTH_TOKEN": "right"}, ""),
        ("right\nrest", {"RAY_AUTH_MODE": "Token"}, ""),
        ("", {}, "needs its token, and ~/.ray/auth_token has none; set RAY_AUTH_MODE=token, and"),
        ("wrong", {}, "needs its token, and that of ~/.ray/auth_token is not the cluster's; set"),
        ("right", {"RAY_AUTH_TOKEN": "wrong"}, "that of RAY_AUTH_TOKEN is not the cluster's; set"),
        ("right", {"RAY_AUTH_TOKEN_PATH": "/no/file"}, "and /no/file has none; set"),
        ("right", {"RAY_AUTH_MODE": "disabled"}, "and RAY_AUTH_MODE=disabled is set; set"),
    ],
)
def test_a_run_sends_the_token_that_its_cluster_needs(
    monkeypatch, tmp_path, known, environment, said
):
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text(known)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    # Ray's own settings would be those of the tests that follow.
    monkeypatch.setattr(
        "ray._raylet.Config", types.SimpleNamespace(initialize=lambda settings: None)
    )
    for name, value in {**environment, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with run_head("right") as port:
        problems = [*check_cluster(get_config(address=f"127.0.0.1:{port}"))]
    if said:
        (problem,) = problems
        assert said in problem and "\n" not in problem
    else:
        assert problems == [] and os.environ["RAY_AUTH_MODE"].lower() == "token"


def test_tokens_stay_off_where_the_cluster_has_none(monkeypatch, port):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "any")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    config = get_config(address=f"127.0.0.1:{port}")
    assert [*check_cluster(config)] == [] and "RAY_AUTH_MODE" not in os.environ


@pytest.mark.parametrize(
    ("name", "interface", "said"),
    [
        ("127.0.1.1", "", "host name 127.0.1.1 resolves to 127.0.1.1, where other nodes cannot"),
        ("::1", "", "resolves to ::1,"),
        ("no name", "", "resolves to no address,"),
        ("127.0.1.1", "eth0", ""),
        ("10.0.0.1", "", ""),
    ],
)
def test_gloo_needs_an_interface_where_a_name_is_the_loopback(monkeypatch, name, interface, said):
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    problems = [*check_ray(composed(*NODE, "trainer.nnodes=2", AUTO))]
    assert [said in problem for problem in problems] == ([True] if said else [])
    # A run on one node does not need it.
    assert [*check_ray(composed(*NODE, AUTO))] == []
