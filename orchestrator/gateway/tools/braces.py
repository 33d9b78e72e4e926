"""Where a JSON object ends, found while it comes."""

from __future__ import annotations


class Braces:
    """Counts them, but for those within texts."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_text = False
        self._escaped = False

    def step(self, letter: str) -> None:
        """The next letter."""
        if self.in_text:
            self.in_text = self._escaped or letter != '"'
            self._escaped = letter == "\\" and not self._escaped
        elif letter == '"':
            self.in_text = True
        else:
            self.depth += {"{": 1, "}": -1}.get(letter, 0)

    def end_in(self, text: str) -> int | None:
        """Where in the next text the object ends that the first brace opened."""
        for place, letter in enumerate(text):
            self.step(letter)
            if not self.depth:
                return place + 1
        return None
