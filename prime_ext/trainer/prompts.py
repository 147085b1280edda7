# SPDX-License-Identifier: Apache-2.0
"""Prompts beside the usual way: answered once more, greedily, and as data in a checkpoint."""

import json
import logging
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from prime_ext.config.settings import SettingsError
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

PARTITION = "train"


def set_uids(prompts: TensorDict, uids: Sequence[str]) -> None:
    """Give prompts these ids, as verl has them."""
    prompts["uid"] = tu.get_tensordict({"uid": np.array(uids, dtype=object)})["uid"]


def greedy_rewards(
    prompts: Sequence[TensorDict],
    submit: Callable[[TensorDict], object],
    global_steps: int,
    wait: Callable[[], object],
) -> dict[str, float]:
    """Reward of the greedy response to each prompt, by prompt id: the baselines of ReMax (arXiv 2310.10505).

    NaN where it failed or could not be judged. Prompts are submitted under ids of their own, and forgotten afterwards.
    """
    batch = tu.concat_tensordict([prompt.copy() for prompt in prompts])
    uids = [f"{transfer.GREEDY_PREFIX}{uid}" for uid in batch["uid"]]
    set_uids(batch, uids)
    # Options of verl's agent loop (AgentLoopWorkerTQ._run_prompt).
    for name, value in (("global_steps", global_steps), ("__rollout_n__", 1), ("__do_sample__", False)):
        tu.assign_non_tensor_data(batch, name, value)
    submit(batch)
    while not all(status in ("finished", "failure") for status in transfer.statuses(uids, PARTITION).values()):
        wait()
    keys = transfer.trajectories(uids, PARTITION)
    # All outputs of a session carry its reward.
    first = {transfer.group_uid(key): key for key in sorted(keys, reverse=True)}
    rewards = dict.fromkeys((uid.removeprefix(transfer.GREEDY_PREFIX) for uid in uids), float("nan"))
    if first:
        answered = KVBatchMeta(partition_id=PARTITION, keys=list(first.values()), tags=[{} for _ in first])
        scores = transfer.RolloutStore(answered).fetch("rm_scores")["rm_scores"].float().sum(-1).tolist()
        infos = transfer.fetch_reward_infos(answered.keys, PARTITION)
        for uid, score, info in zip(first, scores, infos, strict=True):
            if not info.get("grader_failure", 0.0):
                rewards[uid.removeprefix(transfer.GREEDY_PREFIX)] = score
    transfer.clear([*uids, *keys], PARTITION)
    missing = sum(reward != reward for reward in rewards.values())
    if missing:
        logger.warning("%d of %d greedy responses have no verdict: their prompts' mean stands in", missing, len(uids))
    return rewards


# ---- as data that JSON can hold, so that a checkpoint's file of them can run nothing --------------------------------


def prompts_to_data(prompts: TensorDict) -> dict[str, dict]:
    """Fields of prompts by name: tensors as lists of numbers with their dtype, other fields as one value per prompt.

    Raises SettingsError where a value of the dataset is not a text, number, list or mapping of such.
    """
    tensors, values = {}, {}
    for name in prompts.keys():
        field = prompts.get(name)
        if isinstance(field, torch.Tensor):
            tensors[name] = {"dtype": str(field.dtype).removeprefix("torch."), "values": field.tolist()}
        elif isinstance(field, NonTensorStack):
            values[name] = field.tolist()
            if not _is_plain(values[name]):
                said = reprlib.repr(values[name][0])
                raise SettingsError(
                    f"data.train_files: {name} of a prompt holds {said}; checkpoints keep prompts as JSON, so a "
                    f"dataset may hold texts, numbers, lists and mappings with texts as keys"
                )
        else:
            raise TypeError(f"field {name} of a prompt is a {type(field).__name__}, not one value per prompt")
    return {"tensors": tensors, "values": values}


def prompts_of_data(data: dict[str, dict]) -> TensorDict:
    """The inverse of :func:`prompts_to_data`."""
    tensors = {
        name: torch.tensor(field["values"], dtype=getattr(torch, field["dtype"]))
        for name, field in data["tensors"].items()
    }
    return tu.get_tensordict({**tensors, **data["values"]})


def _is_plain(value: Any) -> bool:
    """Whether JSON gives it back as it is; representations are compared, because NaN does not equal itself."""
    try:
        return repr(json.loads(json.dumps(value))) == repr(value)
    except (TypeError, ValueError):
        return False
