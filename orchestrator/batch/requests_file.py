"""The requests of a batch: JSON Lines in the format of OpenAI's Batch API."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from draftloop.config import broken_rules
from draftloop.errors import InvalidInput

MAX_URL_LENGTH = 2048


class BatchRequest(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    custom_id: str = Field(min_length=1)
    method: Literal["POST"]
    url: str
    body: dict[str, Any]

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        is_printable = url.isascii() and url.isprintable() and len(url) <= MAX_URL_LENGTH
        if not (is_printable and url.startswith("/v1/")):
            raise ValueError("must be a path that begins with /v1/, such as /v1/chat/completions")
        return url

    @field_validator("body")
    @classmethod
    def _refuse_streaming(cls, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("stream"):
            raise ValueError("must not ask for a stream: an answer is one line")
        return body


def read_requests(file: Path) -> Iterator[BatchRequest]:
    """Reads requests one by one, without empty lines. Raises InvalidInput naming line and field."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield _parse_line(line, f"{file.name}, line {number}")


def _parse_line(line: bytes, location: str) -> BatchRequest:
    try:
        return BatchRequest.model_validate_json(line)
    except ValidationError as error:
        name, rule, value = next(broken_rules(error))
        raise InvalidInput(f"{location}: {name}" if name else location, rule, value) from None


def check_requests(file: Path) -> set[str]:
    """The `custom_id`s of all requests.

    Raises InvalidInput if a request is invalid, if an id repeats, or if there are no requests.
    """
    custom_ids: set[str] = set()
    for request in read_requests(file):
        if request.custom_id in custom_ids:
            rule = "must be another one for every request"
            raise InvalidInput(f"{file.name}: custom_id", rule, request.custom_id)
        custom_ids.add(request.custom_id)
    if not custom_ids:
        raise InvalidInput("requests", "must hold at least one request", str(file))
    return custom_ids


def read_requests_by_id(file: Path, custom_ids: set[str]) -> Iterator[BatchRequest]:
    """The requests with these ids, each once, even if the file has grown since it was checked."""
    remaining = set(custom_ids)
    for request in read_requests(file):
        if request.custom_id in remaining:
            remaining.remove(request.custom_id)
            yield request
