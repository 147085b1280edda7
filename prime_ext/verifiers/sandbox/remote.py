# SPDX-License-Identifier: Apache-2.0
"""The stream between the process of the solution and the process of its tests.

The tests' side holds proxies. Plain data crosses by value; anything else that the solution returns stays where it is
and is represented by an opaque :class:`RemoteObject`, on which the tests may call methods, iterate, index or take the
length and the truth, but which is never compared by the solution's rules: an object that claims to equal everything
equals nothing here.
"""

import builtins
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from prime_ext.verifiers.sandbox import plain_data
from prime_ext.verifiers.sandbox.plain_data import NotPlainError

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

    def _wait_at_most(self) -> None:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise SolutionTimeout
            self._socket.settimeout(left)

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        try:
            self._wait_at_most()
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except TimeoutError:
            raise SolutionTimeout from None
        except OSError:
            raise SolutionStopped from None

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._wait_at_most()
            try:
                piece = self._socket.recv(min(size - len(data), 1 << 20))
            except TimeoutError:
                raise SolutionTimeout from None
            except OSError:
                raise SolutionStopped from None
            if not piece:
                raise SolutionStopped
            data += piece
        return data

    def receive(self) -> Any:
        (size,) = _HEADER.unpack(self._read(_HEADER.size))
        if size > MAX_FRAME:
            raise SolutionError(f"answer of {size} bytes")
        try:
            return plain_data.loads(bytes(self._read(size)))
        except (ValueError, RecursionError) as error:
            raise SolutionError(f"unreadable answer: {error}") from error


class RemoteObject:
    """Something that lives in the solution's process."""

    def __init__(self, client: "SolutionClient", number: int, kind: str) -> None:
        self._client, self._number, self._kind = client, number, kind

    def _do(self, action: str, name: str = "", arguments: tuple[Any, ...] = (), keywords: Any = None) -> Any:
        return self._client.request(action, self._number, name, arguments, keywords or {})

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._do("call", "", arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("attribute", name)

    def __getitem__(self, key: Any) -> Any:
        return self._do("item", "", (key,))

    def __len__(self) -> int:
        length = self._do("length")
        if type(length) is not int:
            raise self._refusal()
        return length

    def __bool__(self) -> bool:
        # Safe to ask: where only truth is tested, the solution might have returned True or False itself.
        truth = self._do("truth")
        if type(truth) is not bool:
            raise self._refusal()
        return truth

    def __iter__(self) -> Iterator[Any]:
        iterator = self._do("iterate")
        if not isinstance(iterator, RemoteObject):
            raise self._refusal()
        while True:
            answer = iterator._do("next")
            if type(answer) is not list or len(answer) > 1:
                raise self._refusal()
            if not answer:
                return
            yield answer[0]

    def _refusal(self, *_: Any) -> NotPlainError:
        return NotPlainError(f"the solution returned a {self._kind}, which is not plain data")

    def _refuse(self, *_: Any) -> Any:
        raise self._refusal()

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
            return self.request("call", None, name, arguments, keywords)

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

    def request(
        self, action: str, number: int | None, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        message = {
            "action": action,
            "object": number,
            "name": name,
            "arguments": plain_data.encode(list(arguments), self._encode_other),
            "keywords": plain_data.encode(keywords, self._encode_other),
        }
        self._channel.send(message)
        answer = self._answer()
        if "changed" in answer:
            changed = plain_data.decode(answer["changed"], self._decode_other)
            if type(changed) is not list or len(changed) != 2:
                raise SolutionError("malformed answer")
            for before, after in zip(
                [*arguments, *keywords.values()], [*changed[0], *changed[1].values()], strict=True
            ):
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
    elif isinstance(before, plain_data.ListNode | plain_data.TreeNode):
        before.__dict__.update(after.__dict__)


class SolutionServer:
    """The solution's end: serves the functions of one namespace until the tests hang up."""

    def __init__(self, channel: Channel, namespace: dict[str, Any]) -> None:
        self._channel = channel
        self._namespace = namespace
        self._objects: list[Any] = []
        self._nodes = tuple(namespace.get(c.__name__, c) for c in (plain_data.ListNode, plain_data.TreeNode))

    def _encode_other(self, value: Any) -> Any:
        self._objects.append(value)
        return {"object": [len(self._objects) - 1, type(value).__name__]}

    def _decode_other(self, name: str, content: Any) -> Any:
        return self._objects[content]

    def serve(self) -> None:
        self._channel.send({"value": None})
        while True:
            try:
                request = self._channel.receive()
            except SolutionStopped:
                return
            try:
                answer = self._answer(request)
            except Exception as error:
                answer = describe(error)
            self._channel.send(answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        decode, nodes = plain_data.decode, self._nodes
        arguments = decode(request["arguments"], self._decode_other, *nodes)
        keywords = decode(request["keywords"], self._decode_other, *nodes)
        number = request["object"]
        if number is None:
            target = _lookup(self._namespace, request["name"])
        else:
            target = self._objects[number]
        action = request["action"]
        mutable = (list, dict, set, bytearray, *nodes)
        if action == "call":
            answer = {"value": plain_data.encode(target(*arguments, **keywords), self._encode_other)}
            if any(isinstance(item, mutable) for item in (*arguments, *keywords.values())):
                after = [plain_data.encode(part, self._encode_other) for part in (arguments, keywords)]
                if after != [request["arguments"], request["keywords"]]:
                    answer["changed"] = after
            return answer
        if action == "next":
            ended = object()
            item = next(target, ended)
            return {"value": plain_data.encode([] if item is ended else [item], self._encode_other)}
        actions: dict[str, Callable[[], Any]] = {
            "attribute": lambda: getattr(target, request["name"]),
            "item": lambda: target[arguments[0]],
            "length": lambda: len(target),
            "truth": lambda: bool(target),
        }
        if action == "iterate":
            return {"value": self._encode_other(iter(target))}
        return {"value": plain_data.encode(actions[action](), self._encode_other)}


def _lookup(namespace: dict[str, Any], name: str) -> Any:
    if name not in namespace:
        raise NameError(f"the solution defines no {name}")
    return namespace[name]


def describe(error: BaseException) -> dict[str, Any]:
    return {"raised": type(error).__name__, "text": str(error)[:_TEXT]}
