"""Bodies that are validated by their route instead of the framework.

Long ones are validated in a thread, since checking each of their values takes seconds.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError, WrapValidator

from draftloop.errors import DraftloopError
from orchestrator.gateway.body import RequestBody
from orchestrator.gateway.envelope import deadline_of
from orchestrator.metrics import count_refused

LONG_BODY = 1 << 16  # bytes beyond which validation would hold up other requests
# In an annotation: the OpenAPI document describes the body, but the framework does not validate it.
UNREAD = WrapValidator(lambda body, _: body)

AnyBody = TypeVar("AnyBody", bound=RequestBody)


async def read(kind: type[AnyBody], unread: AnyBody, request: Request) -> AnyBody:
    """The validated body. Raises InvalidInput, DeadlineExceeded, or RequestValidationError."""
    try:
        async with deadline_of(request).enforced():
            if len(await request.body()) > LONG_BODY:
                return await asyncio.to_thread(_read, kind, unread)
            return _read(kind, unread)
    except DraftloopError as error:  # RequestValidationError is counted where it is answered
        count_refused(error)
        raise


def _read(kind: type[AnyBody], unread: AnyBody) -> AnyBody:
    try:
        return kind.model_validate(unread)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise RequestValidationError(
            [{**one, "loc": ("body", *one["loc"])} for one in found]
        ) from None
