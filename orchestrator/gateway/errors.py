"""Errors in OpenAI's shape and in Anthropic's: where exceptions become HTTP statuses."""

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
# Names that the loop and the gRPC API use, and what an HTTP client calls the same things.
RENAMED = (("speculation.", "speculative."), ("tokens.ids", "prompt"))
BRANCHES = (
    "str", "int", "float", "bool", r"list\[.*\]", r"dict\[.*\]", r"literal\[.*\]",
    "item:.*",
)  # fmt: skip
UNION_BRANCH = re.compile(f"({'|'.join(BRANCHES)})$")
# Of errors, by their status; every other one is the request's fault.
ANTHROPIC = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip
# Of what Anthropic's client does without where it is told so in these words: it holds the whole
# conversation itself.
DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
KINDS = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


class UnknownModel(InvalidInput):
    """Another model than the one that is served."""


class Unsupported(InvalidInput):
    """Something that OpenAI's API has and this server does not do."""


class ContextExceeded(InvalidInput):
    """A prompt that leaves no room in the context."""


class ClientGone(Exception):
    """Nobody is there any more who could read the answer."""


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
        said = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": said}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """Anthropic's shape."""
        kind = ANTHROPIC.get(self.status, "invalid_request_error")
        said: dict[str, Any] = {"type": kind, "message": self.message}
        if self.code == UNSUPPORTED and self.param in DETAILS:
            said["details"] = DETAILS[self.param]
        return {"type": "error", "error": said}


def problem(error: Exception) -> Problem:
    """What a client is told of an error; no more than that there was one, if it is unforeseen."""
    match error:
        case UnknownModel():
            return Problem(status=404, message=str(error), param="model", code="model_not_found")
        case InvalidInput():
            return _invalid(error)
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
                code="rate_limit_exceeded", headers=_retry(error.retry_after_s),
            )  # fmt: skip
        case Unavailable():
            return Problem(
                status=503, message=str(error), kind="service_unavailable_error",
                code="service_unavailable", headers=_retry(error.retry_after_s),
            )  # fmt: skip
        case DeadlineExceeded():
            return Problem(status=504, message=str(error), kind="timeout_error", code="timeout")
    text = str(error) if isinstance(error, DraftloopError) else INTERNAL
    return Problem(status=500, message=text, kind="server_error", code="internal_error")


def _invalid(error: InvalidInput) -> Problem:
    name = error.field
    for ours, theirs in RENAMED:
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
    code = "invalid_value"
    if isinstance(error, Unsupported):
        code = UNSUPPORTED
    elif isinstance(error, ContextExceeded):
        code = "context_length_exceeded"
    return Problem(status=400, message=f"{name}: {error.description}", param=name, code=code)


def _retry(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def too_large(most_bytes: int) -> Problem:
    """What is said of a body beyond the limit."""
    message = f"body: must have at most {most_bytes} bytes"
    return Problem(status=413, message=message, code="request_too_large")


def too_slow(seconds: float) -> Problem:
    """What is said of a body that stays away."""
    message = f"body: must go on to come; nothing came for {seconds:g} s"
    return Problem(status=408, message=message, code="request_timeout")


def encoded(encoding: str) -> Problem:
    """What is said of a compressed body."""
    message = str(
        InvalidInput("content-encoding", "must not be given: send bodies as they are", encoding)
    )
    return Problem(status=415, message=message, code="unsupported_media_type")


def body_problem(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """The first rule that a body breaks, in the words of `InvalidInput`.

    Of a union's branches the one that got deepest is what was meant.
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
    code = KINDS.get(worst["type"], "invalid_value")
    if worst["type"] == "missing":
        return Problem(status=400, message=f"{name}: must be given", param=name, code=code)
    if unknown:
        message = f"{name}: is not a field of this request"
        return Problem(status=400, message=message, param=name, code=code)
    rule = worst["msg"].replace("Input should be", "must be").replace("should have", "must have")
    told = InvalidInput(name, rule[:1].lower() + rule[1:], worst.get("input"))
    return Problem(status=400, message=str(told), param=name, code=code)


def _path(location: Sequence[str | int], *, ends_in_a_name: bool) -> str:
    """`messages[0].content` of ("body", "messages", 0, "content", "str")."""
    name = ""
    for place, part in enumerate(location[1:], start=2):
        said_by_client = ends_in_a_name and place == len(location)
        if isinstance(part, int):
            name += f"[{part}]"
        elif said_by_client or not UNION_BRANCH.match(part):
            name += f".{part}" if name else part
    return name
