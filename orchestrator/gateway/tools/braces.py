"""Finds the end of a JSON object while it is being written."""

from __future__ import annotations


class Braces:
    """Counts open braces, except those within strings."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_text = False
        self._escaped = False

    def step(self, character: str) -> None:
        """Reads the next character."""
        if self.in_text:
            self.in_text = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self.in_text = True
        else:
            self.depth += {"{": 1, "}": -1}.get(character, 0)

    def end_in(self, text: str) -> int | None:
        """Where in the next text the object of the first brace ends; None if it does not."""
        for index, character in enumerate(text):
            self.step(character)
            if not self.depth:
                return index + 1
        return None
