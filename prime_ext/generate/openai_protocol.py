# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of OpenAI's completion endpoints, as vLLM, SGLang, llama.cpp and others serve them."""

import json
from typing import Any
from urllib.parse import urlsplit

from prime_ext.generate.backend import BackendError, Request, Response
from prime_ext.generate.http_retry import MalformedAnswer, one_line

# What servers call the end of a response: an end token or a stop text (vLLM, OpenAI; TGI's two names), or the length.
_FINISHES = {"stop": "stop", "eos_token": "stop", "stop_sequence": "stop", "length": "length"}


def api_url(base_url: str) -> str:
    """The URL below which the endpoints are: with ``/v1`` if no path is named, else as it is given.

    Raises:
        BackendError: no http or https URL.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BackendError(f"--base-url {base_url} is no URL; it looks like http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise BackendError("--base-url holds a user name or password; name the key's variable with --api-key-env")
    return f"{base_url.rstrip('/')}/v1" if parts.path in ("", "/") else base_url.rstrip("/")


def endpoint(request: Request) -> str:
    """Chats and raw texts have different ones."""
    return "/completions" if isinstance(request.prompt, str) else "/chat/completions"


def payload(request: Request, model: str) -> dict[str, Any]:
    """The request as JSON.

    ``top_k`` and ``min_tokens`` are no part of OpenAI's own interface and are only sent where they mean something.
    Seeds are signed 64-bit numbers there, so the highest bit is left out.
    """
    sampling = request.sampling
    shown = {"prompt": request.prompt} if isinstance(request.prompt, str) else {"messages": list(request.prompt)}
    optional = {
        "top_k": sampling.top_k,
        "min_tokens": sampling.min_new_tokens,
        "stop": list(sampling.stop),
    }
    return {
        "model": model,
        **shown,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "n": 1,
        "stream": False,
        "seed": request.seed & (2**63 - 1),
        **{name: value for name, value in optional.items() if value},
    }


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise MalformedAnswer(f"the answer is not JSON: {one_line(body[:200].decode(errors='replace'))!r}") from None
    if not isinstance(answer, dict):
        raise MalformedAnswer("the answer is no JSON object")
    return answer


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


def read_completion(body: bytes, request: Request) -> Response:
    """An answer as a response. Lengths that a server does not tell (``usage``) are 0, and ``detail`` says so.

    Raises:
        MalformedAnswer: no JSON, no choice, no text, or no reason why it ended.
    """
    answer = _object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MalformedAnswer(one_line(f"the answer has no choices: {answer.get('error', '')}"))
    choice = choices[0]
    holder = choice if isinstance(request.prompt, str) else choice.get("message")
    key = "text" if isinstance(request.prompt, str) else "content"
    if not isinstance(holder, dict) or not isinstance(holder.get(key), str | None):
        raise MalformedAnswer(f"the answer's first choice has no text {key!r}")
    text = holder.get(key)
    reason = choice.get("finish_reason")
    # Servers that take reasoning out of the text have none left where it was cut off within the reasoning.
    if text is None and reason != "length":
        raise MalformedAnswer(f"the answer's first choice has no text {key!r} (finish_reason {reason!r})")
    if not isinstance(reason, str):
        raise MalformedAnswer("the answer does not say why the response ended (finish_reason)")
    tokens, prompt_tokens = (_count(answer.get("usage"), f"{part}_tokens") for part in ("completion", "prompt"))
    if reason not in _FINISHES:
        return Response(request.key, "", 0, prompt_tokens or 0, "failed", f"the server ended the response: {reason}")
    unknown = tokens is None or prompt_tokens is None
    detail = "the server does not tell lengths (usage)" if unknown else ""
    return Response(request.key, text or "", tokens or 0, prompt_tokens or 0, _FINISHES[reason], detail)


def read_models(body: bytes) -> list[dict[str, Any]]:
    """The served models, from the answer of ``/v1/models``.

    Raises:
        MalformedAnswer: it is no such list.
    """
    data = _object(body).get("data")
    entries: list[Any] = data if isinstance(data, list) else [None]
    if not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries):
        raise MalformedAnswer("the answer has no list 'data' of models")
    return entries
