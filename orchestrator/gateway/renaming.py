"""What is a chat inside was asked for in other words: mistakes are told in the client's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from draftloop.errors import InvalidInput


class Renaming:
    """Pairs of a chat's name and the client's; `wholes` are told without what is within them."""

    def __init__(self, pairs: Sequence[tuple[str, str]], wholes: Sequence[str]) -> None:
        self._pairs = tuple(pairs)
        self._wholes = frozenset(wholes)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Raises what is raised within, by the client's names."""
        try:
            yield
        except InvalidInput as error:
            raise type(error).passed_on(self._named(error.field), error.description) from None

    def _named(self, field: str) -> str:
        for theirs, ours in self._pairs:
            if field == theirs or field.startswith((f"{theirs}.", f"{theirs}[")):
                return ours if ours in self._wholes else ours + field.removeprefix(theirs)
        return field
