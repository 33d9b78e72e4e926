"""White space that is held back until it is known what follows it."""

from __future__ import annotations


class HeldSpace:
    """Joined once, when something follows: a model may write white space without end."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def hold(self, space: str) -> None:
        """The next of it."""
        self._pieces.append(space)

    def before(self, text: str) -> str:
        """The text with what was held back before it; nothing is, then."""
        whole = "".join((*self._pieces, text))
        self._pieces.clear()
        return whole

    def drop(self) -> None:
        """It belongs to nothing."""
        self._pieces.clear()
