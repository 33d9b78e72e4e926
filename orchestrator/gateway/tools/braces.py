"""Finds the end of a JSON object while it is being written."""

from __future__ import annotations


class Braces:
    """Counts open braces, except those within strings."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_text = False
        self._escaped = False

    def step(self, letter: str) -> None:
        """Reads the next character."""
        if self.in_text:
            self.in_text = self._escaped or letter != '"'
            self._escaped = letter == "\\" and not self._escaped
        elif letter == '"':
            self.in_text = True
        else:
            self.depth += {"{": 1, "}": -1}.get(letter, 0)

    def end_in(self, text: str) -> int | None:
        """Where in the next text the object of the first brace ends; None if it does not."""
        for place, letter in enumerate(text):
            self.step(letter)
            if not self.depth:
                return place + 1
        return None
