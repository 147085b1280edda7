# SPDX-License-Identifier: Apache-2.0
"""Ray's part in a run: address of a running cluster, environment of workers, reserved resources.

Workers of a running cluster have the environment of ``ray start``; what a recipe sets has to travel
with ``ray.init``. Ray waits silently if it has fewer logical CPUs than the run reserves, or fewer
GPUs than a step scorer needs.
"""

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from prime_ext import upstream
from prime_ext.config.asynchronous import rollout_ranks
from prime_ext.config.step_scorer_settings import scorer_section
from prime_ext.utils.run_store import RunError

# What recipes set after `ray start`. Not here: keys of web services, which ray.init would print,
# and what belongs to a node (NCCL_SOCKET_IFNAME, CUDA_HOME): workers get those from `ray start`.
_PATHS = ("VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT", "TENSORBOARD_DIR")
_NAMES = re.compile(
    r"(VERL|TQ)_\w+|PYTHON(HASHSEED|PATH|WARNINGS)|HF_HUB_OFFLINE|OMP_NUM_THREADS|TENSORBOARD_DIR|"
    r"TOKENIZERS_PARALLELISM|TORCH_COMPILE_DISABLE"
)
# verl 0.9.1: per worker process (ResourcePoolManager), and for TransferQueue's controller.
CPUS_PER_RANK = 3
CPUS_PER_ROLLOUT_RANK = 2
CPUS_OF_TRANSFER_QUEUE_CONTROLLER = 1
_CONNECT_SECONDS = 5.0
# Characters of an error.
_LONGEST = 300


def find_address(config: DictConfig) -> str | None:
    """Return the address of a running cluster; None when ``ray.init`` starts Ray itself."""
    address = config.ray_kwargs.ray_init.get("address") or os.environ.get("RAY_ADDRESS", "").strip()
    return None if address in ("", "local") else str(address)


def check_cluster(config: DictConfig) -> Iterable[str]:
    """Check that the cluster of a run answers, and that none is here which nobody has named.

    Ray waits for minutes for a dead one, deaf to signals, and joins one that ``ray start`` left.
    A cluster that needs a token gets the one of this machine from here on.
    """
    address = find_address(config)
    if address is not None:
        if address == "auto":
            return
        if problem := _try_connect(address):
            yield (
                f"RAY_ADDRESS={address} does not answer ({problem}); start the cluster, correct the"
                " address, or set RAY_ADDRESS=local to start Ray here"
            )
        elif not address.startswith("ray://"):
            yield from _match_token(address)
        return
    named = config.ray_kwargs.ray_init.get("address") or os.environ.get("RAY_ADDRESS", "").strip()
    if named == "local":
        return
    left = upstream.read_left_address(config.ray_kwargs.ray_init.get("_temp_dir"))
    if not left:
        return
    if problem := _try_connect(left):
        yield (
            f"an ended Ray cluster ({left}, {problem}) has left its address on this machine; run"
            " `ray stop`, or set RAY_ADDRESS=local"
        )
    else:
        yield (
            "a Ray cluster that somebody started is running on this machine; set"
            f" RAY_ADDRESS={left} to use it, or RAY_ADDRESS=local to start Ray for this run"
        )


def _try_connect(address: str) -> str:
    """Return why nothing answers at ``host:port``; empty if something does."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return "it must be HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return ""
    except (OSError, OverflowError) as error:
        return str(error)


def _match_token(address: str) -> Iterable[str]:
    """Turn tokens on if the cluster needs this machine's token; yield why it cannot be joined.

    ``ray start --head`` turns them on where a token exists; ``ray.init`` with an address does not.
    Ray itself would report a token that is missing as a failed connection.
    """
    if _accepts(address, ""):
        return
    mode = os.environ.get("RAY_AUTH_MODE", "").strip().lower()
    token, source = _read_token()
    if mode not in ("", "token"):
        problem = f"RAY_AUTH_MODE={mode} is set"
    elif not token:
        problem = f"{source} has none"
    elif not _accepts(address, token):
        problem = f"that of {source} is not the cluster's"
    else:
        if not mode:
            upstream.turn_tokens_on()
        return
    yield (
        f"the Ray cluster at {address} needs its token, and {problem}; set RAY_AUTH_MODE=token, and"
        " RAY_AUTH_TOKEN_PATH to the file with its token (docs/how_to/multi_node.md)"
    )


def _read_token() -> tuple[str, str]:
    """Return the token that Ray would send from here, empty if there is none, and where it is."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    try:
        return Path(path).expanduser().read_text().partition("\n")[0].strip(), path
    except (OSError, UnicodeDecodeError):
        return "", path


def _accepts(address: str, token: str) -> bool:
    """Return whether a cluster does not reject a request with this token, or, if empty, without."""
    import grpc

    sent = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            request(b"", metadata=sent, timeout=_CONNECT_SECONDS)
        except grpc.RpcError as error:
            return error.code() is not grpc.StatusCode.UNAUTHENTICATED
    return True


def environment_words(config: DictConfig, environment: Mapping[str, str]) -> list[str]:
    """Return overrides that carry the run's environment to workers of a running cluster.

    Paths become absolute. Variables that the configuration sets stay.
    """
    if find_address(config) is None:
        return []
    configured = (config.ray_kwargs.ray_init.get("runtime_env") or {}).get("env_vars") or {}
    variables = {
        name: value
        for name, value in environment.items()
        if value and _NAMES.fullmatch(name) and name not in configured
    }
    for name in _PATHS:
        if name in variables:
            variables[name] = str(Path(variables[name]).expanduser().absolute())
    if "PYTHONPATH" in variables:
        folders = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(
            str(Path(folder).absolute()) for folder in folders
        )
    # In quotes Hydra reads a value literally.
    quoted = {name: value.replace("'", "\\'") for name, value in variables.items()}
    return [
        f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'"
        for name, value in quoted.items()
    ]


def count_reserved_cpus(config: DictConfig) -> tuple[int, str]:
    """Return the logical CPUs that a run reserves over all nodes, and what for."""
    ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
    rollouts = rollout_ranks(config)
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    cpus = (
        CPUS_PER_RANK * ranks
        + CPUS_PER_ROLLOUT_RANK * rollouts
        + CPUS_OF_TRANSFER_QUEUE_CONTROLLER
        + units
    )
    generating = (
        f"{CPUS_PER_ROLLOUT_RANK} for each of {rollouts} rollout ranks, " if rollouts else ""
    )
    parts = (
        f"{CPUS_PER_RANK} for each of {ranks} ranks,"
        f" {generating}{CPUS_OF_TRANSFER_QUEUE_CONTROLLER} + {units}"
    )
    return (
        cpus,
        f"verl reserves {cpus} logical CPUs ({parts} for TransferQueue), Ray would wait forever",
    )


def check_ray(config: DictConfig) -> Iterable[str]:
    """Yield one line for everything that this machine lacks for a run.

    Of a running cluster only the platform is checked: :func:`require_resources` checks the rest
    once the run is connected to it.
    """
    trainer = config.trainer
    on_cpu = os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
    if trainer.device == "cuda" and on_cpu:
        yield (
            "VERL_PLATFORM=cpu is in the environment, which puts every worker on the CPU, and"
            " trainer.device=cuda; unset VERL_PLATFORM, or use the configuration for the CPU"
            " (--config-name=..._cpu)"
        )
    elif trainer.device == "cpu" and not on_cpu:
        yield "trainer.device=cpu needs the environment variable VERL_PLATFORM=cpu in every process"
    if find_address(config) is not None:
        if trainer.nnodes > 1:
            yield from _check_host_name()
        return
    if trainer.nnodes > 1:
        yield (
            f"trainer.nnodes={trainer.nnodes} needs a Ray cluster of {trainer.nnodes} nodes, and no"
            " address of one is given; start one and set RAY_ADDRESS (docs/how_to/multi_node.md)"
        )
    init = config.ray_kwargs.ray_init
    needed, purpose = count_reserved_cpus(config)
    cpus = (os.cpu_count() or 1) if init.num_cpus is None else init.num_cpus
    if cpus < needed:
        only = "they are only a number to Ray, so set it to"
        yield f"ray_kwargs.ray_init.num_cpus={cpus}: {purpose}; {only} {needed} or more"
    if trainer.device == "cpu":
        slots = trainer.n_gpus_per_node * trainer.nnodes + rollout_ranks(config)
        gpus = init.get("num_gpus", 0) or 0
        if gpus < slots:
            yield (
                f"ray_kwargs.ray_init.num_gpus={gpus}: CPU mode needs {slots} logical GPU slots,"
                " one for each rank"
            )


def _check_host_name() -> Iterable[str]:
    """Yield one line if gloo would bind to the loopback, where no other node can reach it."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return
    name = socket.gethostname()
    try:
        address = str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        address = ""
    if not address or ip_address(address.partition("%")[0]).is_loopback:
        yield (
            f"the host name {name} resolves to {address or 'no address'}, where other nodes cannot"
            " reach gloo; export GLOO_SOCKET_IFNAME=INTERFACE (see `ip addr`) on every node before"
            " `ray start`, and here"
        )


def require_resources(config: DictConfig, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``RunError`` if ``ray.nodes()`` lack CPUs, in all or for a node's ranks, or GPUs."""
    cpus, gpus = (
        [node["Resources"].get(kind, 0) for node in nodes if node["Alive"]]
        for kind in ("CPU", "GPU")
    )
    needed, purpose = count_reserved_cpus(config)
    more = "give `ray start` more with --num-cpus"
    if sum(cpus) < needed:
        raise RunError(f"Ray has {sum(cpus):g} logical CPUs, and {purpose}; {more}")
    ranks = config.trainer.n_gpus_per_node
    expected = config.trainer.nnodes
    enough = sum(count >= CPUS_PER_RANK * ranks for count in cpus)
    if enough < expected:
        raise RunError(
            f"{enough} of {len(cpus)} nodes have the {CPUS_PER_RANK * ranks} logical CPUs that verl"
            f" reserves for the {ranks} ranks of a node (trainer.n_gpus_per_node), and"
            f" trainer.nnodes={expected}; {more}"
        )
    scorer = scorer_section(config)
    extra = float(scorer.actor.num_gpus) if scorer is not None and "actor" in scorer else 0.0
    if extra and sum(count >= ranks + extra for count in gpus) < expected:
        raise RunError(
            f"the nodes have {', '.join(f'{count:g}' for count in gpus)} GPUs, and the step scorer"
            f" wants step_scorer.actor.num_gpus={extra:g} on each besides"
            f" trainer.n_gpus_per_node={ranks}; lower one of the two, or set"
            " step_scorer.actor.num_gpus=0 and step_scorer.actor.cpu_threads=16"
        )


def summarize_error(error: BaseException) -> str:
    """Return class and message of the error that began a chain of Ray's task errors."""
    root = error
    while isinstance(cause := getattr(root, "cause", None), BaseException):
        root = cause
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    name = type(root).__name__
    # A class that Ray made up for the error of a task is called RayTaskError(Name).
    if name.startswith("RayTaskError(") and lines:
        return lines[-1][:_LONGEST]
    if name == "ActorUnavailableError":
        # Its message names an actor by its id, and has no class of it.
        return f"{name}: a process of the run, or its node, does not answer any more"
    # A first line that ends with a colon only announces the error, as Hydra's does.
    head = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    # The later lines in which Ray names a dead process, and Hydra a section, help a user.
    where = [line for line in lines[1:] if line.startswith(("class_name:", "full_key:"))]
    message = " ".join([f"{name}: {head}"[: _LONGEST - sum(map(len, where)) - 1], *where])
    return message[:_LONGEST].rstrip(": ")
