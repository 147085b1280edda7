# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The logical CPUs that verl reserves in Ray. With fewer of them Ray waits forever, without a word."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prime_ext.preflight_async import rollout_ranks
from prime_ext.ray_cluster import address_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

# verl 0.9.1: per worker process (ResourcePoolManager), and for TransferQueue's controller.
CPUS_PER_RANK = 3
CPUS_PER_ROLLOUT_RANK = 2
CPUS_OF_TRANSFER_QUEUE_CONTROLLER = 1


class ClusterTooSmall(RuntimeError):
    """A run could not get what it reserves."""


@dataclass(frozen=True)
class Reservation:
    """What a run reserves: ranks that train, ranks that only generate, TransferQueue's storage units."""

    ranks: int
    rollouts: int
    units: int

    @property
    def cpus(self) -> int:
        """Logical CPUs, over all nodes."""
        workers = CPUS_PER_RANK * self.ranks + CPUS_PER_ROLLOUT_RANK * self.rollouts
        return workers + CPUS_OF_TRANSFER_QUEUE_CONTROLLER + self.units

    def __str__(self) -> str:
        return (
            f"verl reserves {self.cpus} logical CPUs ({CPUS_PER_RANK} for each of {self.ranks} ranks, "
            f"{f'{CPUS_PER_ROLLOUT_RANK} for each of {self.rollouts} rollout ranks, ' if self.rollouts else ''}"
            f"{CPUS_OF_TRANSFER_QUEUE_CONTROLLER} + {self.units} for TransferQueue), Ray would wait forever"
        )


def reservation(config: "DictConfig") -> Reservation:
    """That of a configuration."""
    return Reservation(
        config.trainer.n_gpus_per_node * config.trainer.nnodes,
        rollout_ranks(config),
        config.transfer_queue.backend.SimpleStorage.num_data_storage_units,
    )


def check_own_cpus(config: "DictConfig") -> Iterable[str]:
    """Whether the Ray that a run starts on this machine would have too few; nothing for a running cluster."""
    if address_of(config) is not None:
        return
    given, needed = config.ray_kwargs.ray_init.num_cpus, reservation(config)
    cpus = (os.cpu_count() or 1) if given is None else given
    if cpus < needed.cpus:
        yield (
            f"ray_kwargs.ray_init.num_cpus={cpus}: {needed}; they are only a number to Ray, so "
            f"set it to {needed.cpus} or more"
        )


def require_cpus(config: "DictConfig", nodes: Sequence[Mapping[str, Any]]) -> None:
    """Ask for enough in all nodes together, and for the ranks of a node on one.

    Args:
        config: of the run.
        nodes: ``ray.nodes()``.

    Raises:
        ClusterTooSmall: there are fewer.
    """
    found = [node["Resources"].get("CPU", 0) for node in nodes if node["Alive"]]
    needed, more = reservation(config), "give `ray start` more with --num-cpus"
    if sum(found) < needed.cpus:
        raise ClusterTooSmall(f"Ray has {sum(found):g} logical CPUs, and {needed}; {more}")
    ranks, wanted = config.trainer.n_gpus_per_node, config.trainer.nnodes
    enough = sum(cpus >= CPUS_PER_RANK * ranks for cpus in found)
    if enough < wanted:
        raise ClusterTooSmall(
            f"{enough} of {len(found)} nodes have the {CPUS_PER_RANK * ranks} logical CPUs that verl reserves for the "
            f"{ranks} ranks of a node (trainer.n_gpus_per_node), and trainer.nnodes={wanted}; {more}"
        )
