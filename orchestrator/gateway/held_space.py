"""White space that is held back until it is known what follows."""

from __future__ import annotations


class HeldSpace:
    """Pieces of white space, joined only once: a model may write white space without end."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def hold(self, space: str) -> None:
        """Adds a piece."""
        self._pieces.append(space)

    def before(self, text: str) -> str:
        """The text after the white space that was held, which is then released."""
        whole = "".join((*self._pieces, text))
        self._pieces.clear()
        return whole

    def drop(self) -> None:
        """Discards what is held, since it belongs to nothing."""
        self._pieces.clear()
