"""Mistakes in a grammar, by the client's own name of the field that it comes of."""

from __future__ import annotations

from draftloop.errors import InvalidInput


def by_form_field(error: InvalidInput, field: str | None) -> InvalidInput:
    """The error by that name, where it is of the grammar."""
    if field is None or not error.field.startswith("grammar"):
        return error
    return InvalidInput.passed_on(field, error.description)
