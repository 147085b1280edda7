# SPDX-License-Identifier: Apache-2.0
"""How far the policies that drew a batch are behind the one that is trained on it."""

from collections.abc import Mapping, Sequence
from typing import Any

from prime_ext.utils import transfer_queue as transfer


def staleness_metrics(tags: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """Staleness of a batch, in weight updates of the rollout servers.

    The servers hold version ``step - 1`` when step ``step`` begins: the weights that the step before ended with. A
    rollout whose first token was drawn by version v has the staleness ``step - 1 - v``; 0 is on-policy. It is partial
    when it was interrupted by a weight update and finished by a later version.

    Args:
        tags: of the rollouts; verl notes the first and the last version in ``min_global_steps`` and
            ``max_global_steps``. Padding, and rollouts of servers that report no version, are left out.
        step: number of the training step, from 1.

    Returns:
        ``prime/staleness/{mean,max}`` over the first tokens, ``.../last_token/mean`` over the last ones, and the
        fraction of partial rollouts; empty when nothing is known.
    """
    versions = [
        (int(tag["min_global_steps"]), int(tag["max_global_steps"]))
        for tag in tags
        if not transfer.is_padding(tag) and tag.get("min_global_steps") is not None
    ]
    if not versions:
        return {}
    first = [step - 1 - version for version, _ in versions]
    last = [step - 1 - version for _, version in versions]
    return {
        "prime/staleness/mean": sum(first) / len(first),
        "prime/staleness/max": max(first),
        "prime/staleness/last_token/mean": sum(last) / len(last),
        "prime/staleness/partial_fraction": sum(old != new for old, new in versions) / len(versions),
    }
