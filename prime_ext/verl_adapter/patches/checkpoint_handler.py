# SPDX-License-Identifier: Apache-2.0
"""``verl.utils.checkpoint.checkpoint_handler``: SFT skips epochs when resumed (for_upstream.md).

The loader in a checkpoint of an epoch's end has no batch left. verl restores it into the next
epoch, which is then empty (verl#7401; verl#7974 mends it like this, and is open).
"""

from typing import Any


def apply(module: Any) -> None:
    """Begin an epoch anew where a checkpoint is from the end of the one before."""
    restore = module.CheckpointHandler._load_dataloader_state

    def restore_within_an_epoch(handler: Any, checkpoint_path: str) -> None:
        if handler.resume_global_step % len(handler.train_dataloader):
            restore(handler, checkpoint_path)

    module.CheckpointHandler._load_dataloader_state = restore_within_an_epoch
