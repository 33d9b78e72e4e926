"""Bodies that come to a route as the objects of their JSON, to be read by it: the long ones in a
thread, since a check of each of their values takes seconds."""

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

LONG_BODY = 1 << 16  # bytes beyond which others would notice the time that reading takes
# In an annotation: the document says what the body has to be, and the framework does not look.
UNREAD = WrapValidator(lambda body, _: body)

Read = TypeVar("Read", bound=RequestBody)


async def read(kind: type[Read], unread: Read, request: Request) -> Read:
    """What the body says. Raises InvalidInput, DeadlineExceeded, or as the framework does where
    it has no form.
    """
    try:
        async with deadline_of(request).bounding():
            if len(await request.body()) > LONG_BODY:
                return await asyncio.to_thread(_read, kind, unread)
            return _read(kind, unread)
    except DraftloopError as error:  # what the framework raises is counted where it is answered
        count_refused(error)
        raise


def _read(kind: type[Read], unread: Read) -> Read:
    try:
        return kind.model_validate(unread)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise RequestValidationError(
            [{**one, "loc": ("body", *one["loc"])} for one in found]
        ) from None
