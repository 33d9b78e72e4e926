"""What all JSON objects that clients send have in common."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from draftloop.errors import InvalidInput
from draftloop.request import check_characters


class Body(BaseModel):
    """A JSON object of which every field counts."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class RequestBody(Body):
    """All of a request's body."""

    @model_validator(mode="before")
    @classmethod
    def _of_characters(cls, body: Any) -> Any:
        """JSON can write half of a surrogate pair, which no text can hold."""
        for name, value in body.items() if isinstance(body, dict) else ():
            try:
                text = json.dumps({name: value}, ensure_ascii=False)
            except RecursionError:
                raise InvalidInput(name, "must not be nested so deep", "lists in lists") from None
            check_characters(name, text)
        return body
