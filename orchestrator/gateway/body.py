"""What all JSON objects that clients send have in common."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from draftloop.errors import InvalidInput
from draftloop.request import check_characters

Entry = TypeVar("Entry")


def _by_types(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """What is wrong with the first entry of a type is wrong with all of them."""
    firsts: dict[type, dict[str, Any]] = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        firsts.setdefault(type(entry), {name: entry})
    for first in firsts.values():
        read(first)
    return read(value)


# Of each the first entry that is wrong is told: a million complaints take seconds, and are no help.
ListOf = Annotated[list[Entry], Field(fail_fast=True)]
ObjectOf = Annotated[dict[str, Entry], WrapValidator(_by_types)]


def meant(said: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """What clients send back of an answer, without nulls and what means nothing here."""
    return {n: value for n, value in said.items() if value is not None and n not in without}


class Body(BaseModel):
    """A JSON object of which every field counts. What is null asks for nothing, whatever its name
    means elsewhere.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _that_asks_for_something(cls, said: Any) -> Any:
        if not isinstance(said, dict) or None not in said.values():
            return said
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in said.items() if value is not None or name in known}


def by_type(usual: str | None = None) -> Discriminator:
    """Tells parts apart by their `type`; those without one are of the `usual`."""

    def tag(said: Any) -> str:
        kind = said.get("type") if isinstance(said, dict) else getattr(said, "type", None)
        return f"item:{kind or usual}"

    return Discriminator(tag)


class SentBack(Body):
    """What clients send back of an answer comes with fields of no meaning: `of_no_effect`."""

    of_no_effect: ClassVar[Collection[str]] = ()

    @model_validator(mode="before")
    @classmethod
    def _that_means_something(cls, said: Any) -> Any:
        return meant(said, cls.of_no_effect) if isinstance(said, dict) else said


class RequestBody(Body):
    """All of a request's body."""

    @model_validator(mode="before")
    @classmethod
    def _of_characters(cls, body: Any) -> Any:
        """JSON can write half of a surrogate pair, which no text can hold, and 1e999."""
        if not isinstance(body, dict):
            return body
        for name, value in body.items():
            try:
                text = json.dumps({name: value}, ensure_ascii=False, allow_nan=False)
            except RecursionError:
                raise InvalidInput(name, "must not be nested so deep", "lists in lists") from None
            except ValueError:
                rule = "must have no numbers beyond what a float holds"
                raise InvalidInput(name, rule, "infinity, or what is no number") from None
            check_characters(name, text)
        return body
