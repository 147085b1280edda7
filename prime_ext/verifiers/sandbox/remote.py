# SPDX-License-Identifier: Apache-2.0
"""The stream between the process of the solution and the process of its tests.

The tests' side holds proxies. Plain data crosses by value; anything else that the solution returns stays where it is
and is represented by an opaque :class:`RemoteObject`, on which the tests may call methods, iterate, index or take the
length and the truth, but which is never compared by the solution's rules: an object that claims to equal everything
equals nothing here.
"""

import builtins
import functools
import json
import operator
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from prime_ext.verifiers.sandbox import plain_data
from prime_ext.verifiers.sandbox.plain_data import NotPlainError
from prime_ext.verifiers.sandbox.prelude import ListNode, TreeNode

_HEADER = struct.Struct("<I")
MAX_FRAME = 64 << 20
_TEXT = 500


class SolutionError(RuntimeError):
    """The solution raised something that is no built-in exception, or answered nonsense."""


class SolutionStopped(BaseException):
    """The solution's process has ended. Not an Exception, so that no test swallows it."""


class SolutionTimeout(BaseException):
    """The solution did not answer in time."""


class ArgumentNotPlain(BaseException):
    """The tests pass something that cannot cross: they need the same-process mode."""


class Channel:
    """Frames of JSON over a connected stream socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
        self.deadline: float | None = None

    def _in_time(self, action: Callable[[Any], Any], argument: Any) -> Any:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise SolutionTimeout
            self._socket.settimeout(left)
        try:
            return action(argument)
        except TimeoutError:
            raise SolutionTimeout from None
        except OSError:
            raise SolutionStopped from None

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        self._in_time(self._socket.sendall, _HEADER.pack(len(data)) + data)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._in_time(self._socket.recv, min(size - len(data), 1 << 20))
            if not piece:
                raise SolutionStopped
            data += piece
        return bytes(data)

    def receive(self) -> Any:
        (size,) = _HEADER.unpack(self._read(_HEADER.size))
        if size > MAX_FRAME:
            raise SolutionError(f"answer of {size} bytes")
        try:
            return plain_data.loads(self._read(size))
        except (ValueError, RecursionError) as error:
            raise SolutionError(f"unreadable answer: {error}") from error


class RemoteObject:
    """Something that lives in the solution's process."""

    def __init__(self, client: "SolutionClient", number: int, kind: str) -> None:
        self._client, self._number, self._kind = client, number, kind

    def _do(self, action: str, /, *arguments: Any, **keywords: Any) -> Any:
        return self._client.request(action, {"object": self._number}, arguments, keywords)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return self._do("call", *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("attribute", name)

    def __getitem__(self, key: Any) -> Any:
        return self._do("item", key)

    def _checked(self, kind: type, value: Any) -> Any:
        return value if type(value) is kind else self._refuse()

    def __len__(self) -> int:
        return self._checked(int, self._do("length"))

    def __bool__(self) -> bool:
        # Safe to ask: where only truth is tested, the solution might have returned True or False itself.
        return self._checked(bool, self._do("truth"))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._checked(RemoteObject, self._do("iterate"))
        while answer := self._checked(list, iterator._do("next")):
            yield answer[0]

    def _refuse(self, *_: Any) -> Any:
        raise NotPlainError(f"the solution returned a {self._kind}, which is not plain data")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _refuse  # type: ignore[assignment]
    __hash__ = _refuse  # type: ignore[assignment]


def _as_exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    # A StopIteration would end a map() or zip() of the tests early and quietly, and so pass them.
    stops = (StopIteration, StopAsyncIteration)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, stops):
        try:
            return kind(text)
        except TypeError:
            pass  # UnicodeDecodeError and its like want more than a text
    return SolutionError(f"{name}: {text}")


class SolutionClient:
    """The tests' end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def wait_until_ready(self) -> None:
        """Return when the solution has been loaded, or raise what it raised."""
        self._answer()

    def function(self, name: str) -> Callable[..., Any]:
        def proxy(*arguments: Any, **keywords: Any) -> Any:
            return self.request("call", {"function": name}, arguments, keywords)

        proxy.__name__ = proxy.__qualname__ = name
        return proxy

    def _encode_other(self, value: Any) -> Any:
        if isinstance(value, RemoteObject):
            return {"object": value._number}
        raise ArgumentNotPlain(f"{type(value).__name__} is not plain data")

    def _decode_other(self, name: str, content: Any) -> Any:
        if name == "object" and type(content) is list and [type(item) for item in content] == [int, str]:
            return RemoteObject(self, content[0], content[1][:100])
        raise NotPlainError("malformed value")

    def request(self, action: str, target: dict[str, Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Let the solution's end do one of its :data:`_ACTIONS`; what it changes in arguments changes here, too."""
        passed = plain_data.encode([list(arguments), keywords], self._encode_other)
        self._channel.send({"action": action, "target": target, "passed": passed})
        answer = self._answer()
        if "changed" in answer:
            changed = plain_data.decode(answer["changed"], self._decode_other)
            if type(changed) is not list or [type(part) for part in changed] != [list, dict]:
                raise SolutionError("malformed answer")
            pairs = zip([*arguments, *keywords.values()], [*changed[0], *changed[1].values()], strict=True)
            for before, after in pairs:
                _take_over(before, after)
        return plain_data.decode(answer.get("value"), self._decode_other)

    def _answer(self) -> dict[str, Any]:
        answer = self._channel.receive()
        if type(answer) is not dict:
            raise SolutionError("malformed answer")
        if "raised" in answer:
            raise _as_exception(str(answer["raised"])[:100], str(answer.get("text"))[:_TEXT])
        return answer


def _take_over(before: Any, after: Any) -> None:
    """Repeat here what the solution did to an argument in place."""
    if type(before) is not type(after):
        return
    if isinstance(before, list | bytearray):
        before[:] = after
    elif isinstance(before, dict | set):
        before.clear()
        before.update(after)
    elif isinstance(before, ListNode | TreeNode):
        before.__dict__.update(after.__dict__)


def _next(iterator: Any) -> list[Any]:
    ended = object()
    item = next(iterator, ended)
    return [] if item is ended else [item]


_ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *arguments, **keywords: target(*arguments, **keywords),
    "attribute": getattr,
    "item": operator.getitem,
    "length": len,
    "truth": bool,
    "iterate": iter,
    "next": _next,
}


def serve(channel: Channel, namespace: dict[str, Any]) -> None:
    """The solution's end: serve the functions of a namespace until the tests hang up."""
    objects: list[Any] = []
    nodes = namespace.get("ListNode", ListNode), namespace.get("TreeNode", TreeNode)

    def encode_other(value: Any) -> Any:
        objects.append(value)
        return {"object": [len(objects) - 1, type(value).__name__]}

    def decode_other(name: str, content: Any) -> Any:
        if name == "object":
            return objects[content]
        if content not in namespace:
            raise NameError(f"the solution defines no {content}")
        return namespace[content]

    encode = functools.partial(plain_data.encode, other=encode_other)
    decode = functools.partial(plain_data.decode, other=decode_other, nodes=nodes)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        target, (arguments, keywords) = decode(request["target"]), decode(request["passed"])
        reply = {"value": encode(_ACTIONS[request["action"]](target, *arguments, **keywords))}
        mutable = (list, dict, set, bytearray, *nodes)
        if any(isinstance(item, mutable) for item in (*arguments, *keywords.values())):
            after = encode([arguments, keywords])
            if after != request["passed"]:
                reply["changed"] = after
        return reply

    channel.send({"value": None})
    while True:
        try:
            request = channel.receive()
        except SolutionStopped:
            return
        try:
            reply = answer(request)
        except Exception as error:
            reply = describe(error)
        channel.send(reply)


def describe(error: BaseException) -> dict[str, Any]:
    return {"raised": type(error).__name__, "text": str(error)[:_TEXT]}
