"""Serializes answers: JSON bodies and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from orchestrator.gateway.errors import Problem, problem

MESSAGES = "/v1/messages"  # Anthropic's Messages API
DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Valid in JSON texts, but many readers of event streams take them for line ends: written escaped.
ESCAPED_LINE_ENDS = {mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def encode_json(value: Any) -> bytes:
    """Compact JSON in UTF-8. Lone surrogates, which a client may have sent, become `?`."""
    text = _encode(value)
    if not text.isascii():
        for mark, written in ESCAPED_LINE_ENDS.items():
            text = text.replace(mark, written)
    return text.encode("utf-8", "replace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode_json(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One server-sent event with its name in the `event` field."""
    return f"event: {name}\n".encode() + event(value)


def error_events(error: Exception) -> bytes:
    """The error as an event, then `[DONE]`: OpenAI's clients raise it.

    For streams, whose status has already been sent.
    """
    return event(problem(error).body) + DONE


class JsonAnswer(Response):
    """A JSON body."""

    media_type = "application/json"

    def __init__(
        self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(encode_json(value), status_code=status_code, headers=dict(headers or {}))


def is_anthropic_path(path: str) -> bool:
    """Whether the path belongs to Anthropic's API."""
    return f"{path}/".startswith(f"{MESSAGES}/")


def refusal(error: Problem, path: str) -> JsonAnswer:
    """The error response, in the shape of the API that the path belongs to."""
    body = error.anthropic_body if is_anthropic_path(path) else error.body
    return JsonAnswer(body, error.status, error.headers)
