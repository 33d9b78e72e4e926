"""Base classes and field types of the JSON objects that clients send."""

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
    """Validates one entry of each type first: a wrong type fails once, not for each entry."""
    firsts: dict[type, dict[str, Any]] = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        firsts.setdefault(type(entry), {name: entry})
    for first in firsts.values():
        read(first)
    return read(value)


# Both avoid one error for every wrong entry: a million errors take seconds, and help nobody.
ListOf = Annotated[list[Entry], Field(fail_fast=True)]
ObjectOf = Annotated[dict[str, Entry], WrapValidator(_by_types)]


def meant(said: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """An object that a client sent, without null fields and the fields `without`."""
    return {n: value for n, value in said.items() if value is not None and n not in without}


class Body(BaseModel):
    """A JSON object in which unknown fields are errors, unless they are null."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _that_asks_for_something(cls, said: Any) -> Any:
        if not isinstance(said, dict) or None not in said.values():
            return said
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in said.items() if value is not None or name in known}


def by_type(usual: str | None = None) -> Discriminator:
    """Discriminates a union by `type`; objects without one have the type `usual`."""

    def tag(said: Any) -> str:
        kind = said.get("type") if isinstance(said, dict) else getattr(said, "type", None)
        return f"item:{kind or usual}"

    return Discriminator(tag)


class SentBack(Body):
    """An object in which nulls and the fields `of_no_effect` are ignored.

    Clients send such objects back from an answer, with fields that mean nothing here.
    """

    of_no_effect: ClassVar[Collection[str]] = ()

    @model_validator(mode="before")
    @classmethod
    def _that_means_something(cls, said: Any) -> Any:
        return meant(said, cls.of_no_effect) if isinstance(said, dict) else said


class RequestBody(Body):
    """The whole body of a request."""

    @model_validator(mode="before")
    @classmethod
    def _of_characters(cls, body: Any) -> Any:
        """Raises InvalidInput for lone surrogates, numbers beyond a float (1e999), deep nesting."""
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
