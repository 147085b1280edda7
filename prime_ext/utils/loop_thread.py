# SPDX-License-Identifier: Apache-2.0
"""A thread for coroutines of others' code, which is replaced when one of them blocks it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

# Threads that may hang forever; after that nothing is run any more.
MOST_HANGING = 8
# A loop that does not turn for so long is blocked.
_SECONDS_TO_TURN = 1.0


class LoopThread:
    """Event loop in its own thread; a coroutine that blocks it delays only others of this loop."""

    def __init__(self) -> None:
        self.hanging = 0
        self._start()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="others' code", daemon=True).start()

    async def run(self, coroutine: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
        """Return the coroutine's result or raise its exceptions.

        Raises ``asyncio.TimeoutError``: it took longer than ``seconds``, or too many threads hang.
        """
        if self.hanging >= MOST_HANGING:
            coroutine.close()
            raise asyncio.TimeoutError
        loop = self._loop
        try:
            return await asyncio.wait_for(_submit(coroutine, loop), seconds)
        except asyncio.TimeoutError:
            if loop is self._loop and not await _turns(loop) and loop is self._loop:
                self.hanging += 1
                self._start()
            raise


def _submit(
    coroutine: Coroutine[Any, Any, _Result], loop: asyncio.AbstractEventLoop
) -> "asyncio.Future[_Result]":
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


async def _turns(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop is not blocked."""
    try:
        await asyncio.wait_for(_submit(asyncio.sleep(0), loop), _SECONDS_TO_TURN)
    except asyncio.TimeoutError:
        return False
    return True
