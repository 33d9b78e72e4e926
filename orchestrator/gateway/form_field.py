"""Errors about a grammar, under the name of the client's field that the grammar came from."""

from __future__ import annotations

from draftloop.errors import InvalidInput


def with_form_field(error: InvalidInput, field: str | None) -> InvalidInput:
    """The error with `field` as its field, if it is about the grammar; otherwise unchanged."""
    if field is None or not error.field.startswith("grammar"):
        return error
    return InvalidInput.from_description(field, error.description)
