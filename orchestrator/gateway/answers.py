"""Answers as bytes: JSON, and events of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from orchestrator.gateway.errors import Problem, problem

MESSAGES = "/v1/messages"  # of Anthropic's API
DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Characters that JSON may hold and many readers of event streams take for the end of a line.
LINE_ENDS = {mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def encoded(value: Any) -> bytes:
    """Compact JSON. What is no character, half a surrogate pair that a client sent, becomes `?`."""
    text = _encode(value)
    if not text.isascii():
        for mark, written in LINE_ENDS.items():
            text = text.replace(mark, written)
    return text.encode("utf-8", "replace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One server-sent event that says what it is."""
    return f"event: {name}\n".encode() + event(value)


def last_words(error: Exception) -> bytes:
    """The status has been sent: the error comes as an event, which OpenAI's clients raise."""
    return event(problem(error).body) + DONE


class JsonAnswer(Response):
    """A JSON body."""

    media_type = "application/json"

    def __init__(
        self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(encoded(value), status_code=status_code, headers=dict(headers or {}))


def is_anthropics(path: str) -> bool:
    """Whether clients of Anthropic's API ask there."""
    return f"{path}/".startswith(f"{MESSAGES}/")


def refusal(said: Problem, path: str) -> JsonAnswer:
    """The answer that tells a problem, in the shape that the clients of that route know."""
    body = said.anthropic_body if is_anthropics(path) else said.body
    return JsonAnswer(body, said.status, said.headers)
