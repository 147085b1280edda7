# SPDX-License-Identifier: Apache-2.0
"""A run on a Ray cluster that is already there: its address, and the environment of its workers.

Ray that a run starts itself hands its environment on. Workers of a running cluster have that of ``ray start`` instead,
on every node; what a run needs and a recipe sets has to travel with ``ray.init``.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

ADDRESS = "RAY_ADDRESS"
_INIT = "ray_kwargs.ray_init"
_VARIABLES = f"{_INIT}.runtime_env.env_vars"

# What recipes set after `ray start`. Not here: keys of web services, which ray.init would print, and what belongs to a
# node (NCCL_SOCKET_IFNAME, CUDA_HOME): workers get those from `ray start`.
_PATHS = ("VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT", "TENSORBOARD_DIR")
_NAMES = (
    *_PATHS,
    "HF_HUB_OFFLINE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONPATH",
    "PYTHONWARNINGS",
    "TOKENIZERS_PARALLELISM",
    "TORCH_COMPILE_DISABLE",
    "TQ_LOGGING_LEVEL",
    "TQ_NUM_THREADS",
    "VERL_LOGGING_LEVEL",
    "VERL_PLATFORM",
    "VERL_USE_EXTERNAL_MODULES",
)


def address_words(overrides: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """``RAY_ADDRESS`` as an override, so that the configuration says what the run uses; none if it already does.

    Returns no word either for ``RAY_ADDRESS=local``, which is Ray's word for a cluster of one's own.
    """
    address = environment.get(ADDRESS, "").strip()
    if not address or address == "local" or any(_names(word, f"{_INIT}.address") for word in overrides):
        return []
    return [f"++{_INIT}.address={_quoted(address)}"]


def address_of(config: DictConfig) -> str | None:
    """Address of the running cluster that a run connects to; None when it starts Ray itself."""
    address = config.ray_kwargs.ray_init.get("address")
    return None if address in (None, "", "local") else str(address)


def environment_words(config: DictConfig, environment: Mapping[str, str]) -> list[str]:
    """Overrides that carry the run's environment to the workers of a running cluster. Relative paths become absolute.

    What the configuration sets itself (``+ray_kwargs.ray_init.runtime_env.env_vars.NAME=VALUE``) stays.
    """
    if address_of(config) is None:
        return []
    own = (config.ray_kwargs.ray_init.get("runtime_env") or {}).get("env_vars") or {}
    found = {name: environment[name] for name in _NAMES if environment.get(name) and name not in own}
    for name in _PATHS:
        if name in found:
            found[name] = str(Path(found[name]).expanduser().absolute())
    if "PYTHONPATH" in found:
        folders = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
    return [f"++{_VARIABLES}.{name}={_quoted(value)}" for name, value in found.items()]


def check_cluster(config: DictConfig) -> Iterable[str]:
    """What would go wrong when the run connects to Ray, or waits for nodes that cannot come."""
    init, nodes = config.ray_kwargs.ray_init, config.trainer.nnodes
    if address_of(config) is None:
        if nodes > 1:
            yield (
                f"trainer.nnodes={nodes} needs a Ray cluster of {nodes} nodes, and no address of one is given; start "
                f"one and set {ADDRESS}, as recipes/multi_node/ray_cluster.sh does"
            )
        return
    for name in ("num_cpus", "num_gpus", "resources", "object_store_memory"):
        if init.get(name) is not None:
            yield (
                f"{_INIT}.{name}={init[name]} cannot be said of a cluster that is running ({address_of(config)}); "
                f"give it to `ray start`, and null here"
            )


def _names(word: str, key: str) -> bool:
    return re.match(rf"\+{{0,2}}{re.escape(key)}=", word) is not None


def _quoted(value: str) -> str:
    """As Hydra reads it literally."""
    return "'" + value.replace("'", "\\'") + "'"
