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


def _check_types_first(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Validates one entry of each type first: a wrong type fails once, not for each entry."""
    first_of_type: dict[type, dict[str, Any]] = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        first_of_type.setdefault(type(entry), {name: entry})
    for first in first_of_type.values():
        read(first)
    return read(value)


# Both avoid one error for every wrong entry: a million errors take seconds, and help nobody.
ListOf = Annotated[list[Entry], Field(fail_fast=True)]
ObjectOf = Annotated[dict[str, Entry], WrapValidator(_check_types_first)]


def without_nulls(value: dict[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """An object that a client sent, without null fields and the fields `ignored`."""
    return {
        name: field_value
        for name, field_value in value.items()
        if field_value is not None and name not in ignored
    }


class Body(BaseModel):
    """A JSON object in which unknown fields are errors, unless they are null."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {
            name: field_value
            for name, field_value in value.items()
            if field_value is not None or name in known
        }


def by_type(default: str | None = None) -> Discriminator:
    """Discriminates a union by `type`; objects without one have the type `default`."""

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return f"item:{kind or default}"

    return Discriminator(tag)


class EchoedBody(Body):
    """An object in which nulls and the fields `ignored_fields` are ignored.

    Clients send such objects back from an answer, with fields that mean nothing here.
    """

    ignored_fields: ClassVar[Collection[str]] = ()

    @model_validator(mode="before")
    @classmethod
    def _drop_ignored_fields(cls, value: Any) -> Any:
        return without_nulls(value, cls.ignored_fields) if isinstance(value, dict) else value


class RequestBody(Body):
    """The whole body of a request."""

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, body: Any) -> Any:
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
