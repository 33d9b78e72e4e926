"""API keys in the form in which clients send them."""

from __future__ import annotations

from draftloop.errors import InvalidInput


def bearer(api_key: str) -> str:
    """The value of the `authorization` header.

    Raises InvalidInput if the key is empty or not printable ASCII; the error does not show the key.
    """
    if not api_key or not api_key.isascii() or not api_key.isprintable():
        raise InvalidInput.from_description("api_key", "must be printable ASCII, and not empty")
    return f"Bearer {api_key}"
