"""Translates field names in errors back from a chat's to those of the API that the client used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from draftloop.errors import InvalidInput


class Renaming:
    """`pairs`: a chat's field name and the client's.

    `wholes`: those of the client's names after which errors leave out the path within the field,
    because a chat's path is not the client's.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], wholes: Sequence[str]) -> None:
        self._pairs = tuple(pairs)
        self._wholes = frozenset(wholes)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Context in which InvalidInput is raised with the client's field names."""
        try:
            yield
        except InvalidInput as error:
            raise type(error).from_description(
                self._client_field(error.field), error.description
            ) from None

    def _client_field(self, field: str) -> str:
        for chat_name, client_name in self._pairs:
            if field == chat_name or field.startswith((f"{chat_name}.", f"{chat_name}[")):
                return (
                    client_name
                    if client_name in self._wholes
                    else client_name + field.removeprefix(chat_name)
                )
        return field
