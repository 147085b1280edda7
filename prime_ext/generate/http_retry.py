# SPDX-License-Identifier: Apache-2.0
"""One JSON request to an HTTP server, made again where that may help, within a deadline."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp

Answer = TypeVar("Answer")
# Statuses below 500 that another attempt may change: request timeout, too early, too many requests.
_TRANSIENT = (408, 425, 429)
_LONGEST_EXCERPT = 300


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a request is tried.

    Attributes:
        attempts: how often it is made before it has failed.
        timeout_seconds: of one attempt, connecting included.
        deadline_seconds: of all attempts and the pauses between them.
        backoff_seconds: longest pause before the second attempt, doubled before each further one.
        longest_pause_seconds: where the doubling ends; a server may ask for a longer one.
        max_answer_bytes: longest answer that is read.
    """

    attempts: int = 6
    timeout_seconds: float = 1800.0
    deadline_seconds: float = 7200.0
    backoff_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    max_answer_bytes: int = 2**25


class GaveUp(Exception):
    """No usable answer; the message is one line.

    Attributes:
        unreachable: no attempt got as far as an answer of the server.
    """

    def __init__(self, reason: str, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.unreachable = unreachable


class MalformedAnswer(ValueError):
    """An answer that is not what was asked for; another attempt may bring a better one."""


class _Transient(Exception):
    """A failure that another attempt may mend, and the pause that the server asks for."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


def one_line(text: str) -> str:
    """The beginning of a text without line breaks."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_EXCERPT else f"{line[:_LONGEST_EXCERPT]}..."


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, which is a number or a date; None if it says neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or timezone.utc) - now).total_seconds())


def pause_before(attempt: int, policy: RetryPolicy, asked: float | None, draw: float) -> float:
    """Seconds before attempt number ``attempt`` (from 1).

    Half of the doubled back-off and, times a uniform ``draw``, the other half, so that clients that failed together do
    not come back together; never less than the server asked for.
    """
    longest = min(policy.longest_pause_seconds, policy.backoff_seconds * 2.0 ** min(attempt - 1, 64))
    return max(longest * (0.5 + 0.5 * draw), asked or 0.0)


async def read_limited(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body.

    Raises:
        GaveUp: it is longer than ``limit`` bytes.
    """
    parts, size = [], 0
    async for part in response.content.iter_chunked(2**16):
        size += len(part)
        if size > limit:
            raise GaveUp(f"the answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def _attempt(
    session: aiohttp.ClientSession, url: str, payload: Mapping[str, Any], limit: int, read: Callable[[bytes], Answer]
) -> Answer:
    async with session.post(url, json=payload) as response:
        if response.status >= 500 or response.status in _TRANSIENT:
            text = (await read_limited(response, limit)).decode(errors="replace")
            asked = retry_after(response.headers.get("Retry-After"), datetime.now(timezone.utc))
            raise _Transient(one_line(f"HTTP {response.status}: {text}"), asked)
        body = await read_limited(response, limit)
        if response.status >= 300:
            raise GaveUp(one_line(f"HTTP {response.status}: {body.decode(errors='replace')}"))
        return read(body)


async def post_json(
    session: aiohttp.ClientSession,
    url: str,
    payload: Mapping[str, Any],
    policy: RetryPolicy,
    read: Callable[[bytes], Answer],
) -> Answer:
    """Post a JSON object and read the answer.

    Made again after 408, 425, 429 (no sooner than its ``Retry-After``), 5xx, a connection that cannot be made or
    breaks, silence, and an answer that ``read`` finds malformed.

    Args:
        session: without time limits of its own.
        url: where to.
        payload: the object.
        policy: how long and how often.
        read: makes something of the body, or raises :class:`MalformedAnswer`.

    Raises:
        GaveUp: the attempts are used up, the deadline does not allow another one, the answer is too large, or the
            server refuses the request.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + policy.deadline_seconds
    reason, unreachable = "", True
    for attempt in range(1, policy.attempts + 1):
        seconds = min(policy.timeout_seconds, deadline - clock())
        asked = None
        try:
            return await asyncio.wait_for(
                _attempt(session, url, payload, policy.max_answer_bytes, read), timeout=max(seconds, 0.0)
            )
        except (_Transient, MalformedAnswer) as failure:
            reason, unreachable = str(failure), False
            asked = failure.pause if isinstance(failure, _Transient) else None
        except (TimeoutError, asyncio.TimeoutError):
            reason, unreachable = f"no answer in {seconds:.3g} s", False
        except aiohttp.ClientConnectorError as error:
            reason = one_line(f"no connection: {error}")
        except (aiohttp.ClientError, OSError) as error:
            reason, unreachable = one_line(f"connection lost: {type(error).__name__} {error}"), False
        if attempt == policy.attempts:
            break
        pause = pause_before(attempt, policy, asked, random.random())
        if clock() + pause >= deadline:
            raise GaveUp(
                f"{reason}; attempt {attempt + 1} would come after the deadline of {policy.deadline_seconds:g} s",
                unreachable,
            )
        await asyncio.sleep(pause)
    raise GaveUp(f"{reason} ({policy.attempts} attempts)", unreachable)
