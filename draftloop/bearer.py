"""API keys as clients send them."""

from __future__ import annotations

from draftloop.errors import InvalidInput


def bearer(api_key: str) -> str:
    """The value of `authorization`. Raises InvalidInput, which does not show it, for no key."""
    if not api_key or not api_key.isascii() or not api_key.isprintable():
        raise InvalidInput.passed_on("api_key", "must be printable ASCII, and not empty")
    return f"Bearer {api_key}"
