"""Translates exceptions to HTTP statuses and error bodies, in OpenAI's shape and Anthropic's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    Forbidden,
    InvalidInput,
    Overloaded,
    Unauthenticated,
    Unavailable,
)

UNSUPPORTED = "unsupported_parameter"
INTERNAL = "internal error; the server's log has the cause"
# Field names of the loop and the gRPC API, and the same fields' names in the HTTP API.
RENAMED_PREFIXES = (("speculation.", "speculative."), ("tokens.ids", "prompt"))
BRANCHES = (
    "str", "int", "float", "bool", r"list\[.*\]", r"dict\[.*\]", r"literal\[.*\]",
    "item:.*",
)  # fmt: skip
UNION_BRANCH = re.compile(f"({'|'.join(BRANCHES)})$")
# Anthropic's error types by status; every other status is an invalid_request_error.
ANTHROPIC_ERROR_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip
# Error details by parameter. If it reads these, Anthropic's client does without the parameter:
# it holds the whole conversation itself.
ERROR_DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
ERROR_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


class UnknownModel(InvalidInput):
    """The request names a model other than the one that is served."""


class Unsupported(InvalidInput):
    """The request asks for something that the APIs have and this server does not support."""


class ContextExceeded(InvalidInput):
    """The prompt leaves no room for output in the model's context."""


class ClientGone(Exception):
    """The client has disconnected, so nobody can read the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as the client sees it."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's shape."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """Anthropic's shape."""
        kind = ANTHROPIC_ERROR_TYPES.get(self.status, "invalid_request_error")
        error: dict[str, Any] = {"type": kind, "message": self.message}
        if self.code == UNSUPPORTED and self.param in ERROR_DETAILS:
            error["details"] = ERROR_DETAILS[self.param]
        return {"type": "error", "error": error}


def problem(error: Exception) -> Problem:
    """The error as the client sees it. Of an unforeseen one, it learns only that there was one."""
    match error:
        case UnknownModel():
            return Problem(status=404, message=str(error), param="model", code="model_not_found")
        case InvalidInput():
            return _invalid_input(error)
        case Unauthenticated():
            return Problem(
                status=401, message=str(error), kind="authentication_error",
                code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        case Forbidden():
            return Problem(
                status=403, message=str(error), kind="permission_error", code="forbidden"
            )
        case Overloaded():
            return Problem(
                status=429, message=str(error), kind="rate_limit_error",
                code="rate_limit_exceeded", headers=_retry_headers(error.retry_after_s),
            )  # fmt: skip
        case Unavailable():
            return Problem(
                status=503, message=str(error), kind="service_unavailable_error",
                code="service_unavailable", headers=_retry_headers(error.retry_after_s),
            )  # fmt: skip
        case DeadlineExceeded():
            return Problem(status=504, message=str(error), kind="timeout_error", code="timeout")
    text = str(error) if isinstance(error, DraftloopError) else INTERNAL
    return Problem(status=500, message=text, kind="server_error", code="internal_error")


def _invalid_input(error: InvalidInput) -> Problem:
    name = error.field
    for internal, public in RENAMED_PREFIXES:
        if name.startswith(internal):
            name = public + name.removeprefix(internal)
    code = "invalid_value"
    if isinstance(error, Unsupported):
        code = UNSUPPORTED
    elif isinstance(error, ContextExceeded):
        code = "context_length_exceeded"
    return Problem(status=400, message=f"{name}: {error.description}", param=name, code=code)


def _retry_headers(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def too_large(max_bytes: int) -> Problem:
    """The error for a body beyond the size limit."""
    message = f"body: must have at most {max_bytes} bytes"
    return Problem(status=413, message=message, code="request_too_large")


def too_slow(seconds: float) -> Problem:
    """The error for a body of which nothing arrived for `seconds`."""
    message = f"body: must go on to come; nothing came for {seconds:g} s"
    return Problem(status=408, message=message, code="request_timeout")


def unsupported_encoding(encoding: str) -> Problem:
    """The error for a compressed body."""
    message = str(
        InvalidInput("content-encoding", "must not be given: send bodies as they are", encoding)
    )
    return Problem(status=415, message=message, code="unsupported_media_type")


def body_problem(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """The error for a body that breaks rules: one of pydantic's errors, worded as `InvalidInput`.

    It is the first with the deepest location: of a union's branches, the one that validated
    furthest is taken for the one that was meant.
    """
    worst = max(errors, key=lambda error: len(error["loc"]))
    unknown = worst["type"] == "extra_forbidden"
    name = _path(worst["loc"], ends_in_a_name=unknown)
    if worst["type"] == "json_invalid":
        reason = worst.get("ctx", {}).get("error", "")
        return Problem(status=400, message=f"body: must be JSON: {reason}", code="invalid_json")
    if not name:
        message = "body: must be a JSON object, sent as application/json"
        return Problem(status=400, message=message, code="invalid_json")
    code = ERROR_CODES.get(worst["type"], "invalid_value")
    if worst["type"] == "missing":
        return Problem(status=400, message=f"{name}: must be given", param=name, code=code)
    if unknown:
        message = f"{name}: is not a field of this request"
        return Problem(status=400, message=message, param=name, code=code)
    rule = worst["msg"].replace("Input should be", "must be").replace("should have", "must have")
    invalid = InvalidInput(name, rule[:1].lower() + rule[1:], worst.get("input"))
    return Problem(status=400, message=str(invalid), param=name, code=code)


def _path(location: Sequence[str | int], *, ends_in_a_name: bool) -> str:
    """The field's name: `messages[0].content` of ("body", "messages", 0, "content", "str").

    Names of a union's branches are left out. `ends_in_a_name`: the last entry is the client's own.
    """
    name = ""
    for position, part in enumerate(location[1:], start=2):
        is_client_name = ends_in_a_name and position == len(location)
        if isinstance(part, int):
            name += f"[{part}]"
        elif is_client_name or not UNION_BRANCH.match(part):
            name += f".{part}" if name else part
    return name
