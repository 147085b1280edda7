# SPDX-License-Identifier: Apache-2.0
"""``verl.trainer.ppo.v1.trainer_base``: loggers, of which verl has no registry. No defect."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from verl.trainer.ppo.v1 import trainer_base


@contextmanager
def replace_loggers(loggers: Mapping[str, Any]) -> Iterator[None]:
    """Replace verl's loggers of these names within the context, in ``Tracking`` and ``tqdm``.

    With a ``console`` among them trainers have no progress bars.
    """
    make_tracking = trainer_base.Tracking
    bar = trainer_base.tqdm

    def build_tracking(*, default_backend: str | list[str], **keywords: Any) -> Any:
        names = [default_backend] if isinstance(default_backend, str) else default_backend
        tracking = make_tracking(
            default_backend=[name for name in names if name not in loggers], **keywords
        )
        tracking.logger.update(loggers)
        return tracking

    trainer_base.Tracking = build_tracking
    trainer_base.tqdm = partial(bar, disable="console" in loggers)
    try:
        yield
    finally:
        trainer_base.Tracking = make_tracking
        trainer_base.tqdm = bar
