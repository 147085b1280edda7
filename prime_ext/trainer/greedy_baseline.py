# SPDX-License-Identifier: Apache-2.0
"""Greedy responses to the prompts of a batch: the baselines of ReMax (arXiv 2310.10505).

verl's V1 trainer leaves them out, but its agent loop takes the number of sessions and greedy decoding from each prompt.
So the prompts that were selected for training are submitted once more, under ids of their own, while the rollout engine
still runs; their rewards are read and the responses forgotten before anything else sees them.
"""

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# No underscore: verl takes what stands before the first one in the key of a trajectory as the id of the prompt.
PREFIX = "greedy-"
PARTITION = "train"


def greedy_prompts(prompts: Sequence[TensorDict], global_steps: int) -> TensorDict:
    """The prompts with ids of their own, to be answered once and greedily."""
    batch = tu.concat_tensordict([prompt.copy() for prompt in prompts])
    uids = np.array([f"{PREFIX}{uid}" for prompt in prompts for uid in prompt["uid"]], dtype=object)
    batch["uid"] = tu.get_tensordict({"uid": uids})["uid"]
    # Options of verl's agent loop (AgentLoopWorkerTQ._run_prompt).
    for name, value in (("global_steps", global_steps), ("__rollout_n__", 1), ("__do_sample__", False)):
        tu.assign_non_tensor_data(batch, name, value)
    return batch


def greedy_rewards(
    prompts: Sequence[TensorDict],
    submit: Callable[[TensorDict], object],
    global_steps: int,
    poll_interval: float,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, float]:
    """Reward of the greedy response to each prompt, by prompt id; NaN where it failed or could not be judged.

    Args:
        prompts: one prompt each, as they came from the data.
        submit: hands prompts to the agent loop.
        global_steps: the training step.
        poll_interval: seconds between looks for finished responses.
        sleep: waits.
    """
    batch = greedy_prompts(prompts, global_steps)
    uids = [str(uid) for uid in batch["uid"]]
    submit(batch)
    while not all(status in ("finished", "failure") for status in transfer.statuses(uids, PARTITION).values()):
        sleep(poll_interval)
    keys = transfer.trajectories(uids, PARTITION)
    # All outputs of a session carry its reward.
    first = {transfer.group_uid(key): key for key in sorted(keys, reverse=True)}
    rewards = dict.fromkeys((uid.removeprefix(PREFIX) for uid in uids), float("nan"))
    if first:
        answered = KVBatchMeta(partition_id=PARTITION, keys=list(first.values()), tags=[{} for _ in first])
        scores = transfer.fetch_padded(answered, ["rm_scores"])["rm_scores"].float().sum(-1).tolist()
        infos = transfer.fetch_reward_infos(answered.keys, PARTITION)
        for uid, score, info in zip(first, scores, infos, strict=True):
            if not info.get("grader_failure", 0.0):
                rewards[uid.removeprefix(PREFIX)] = score
    transfer.clear([*uids, *keys], PARTITION)
    missing = sum(reward != reward for reward in rewards.values())
    if missing:
        logger.warning("%d of %d greedy responses have no verdict: their prompts' mean stands in", missing, len(uids))
    return rewards
