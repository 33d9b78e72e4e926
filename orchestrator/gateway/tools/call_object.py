"""A call that is one JSON object, read while it is being written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from orchestrator.gateway.tools.braces import Braces
from orchestrator.gateway.tools.literals import in_whole_characters
from orchestrator.gateway.tools.notation import CallBody
from orchestrator.gateway.tools.schemas import MOST_NAME_LETTERS

ARGUMENTS = ("arguments", "parameters")
# Nearly all models write the name first, so that arguments can be passed on as they come.
HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*,\s*"(?:'
    + "|".join(ARGUMENTS)
    + r')"\s*:\s*(?=\{)'
)
LONGEST_HEAD = 6 * MOST_NAME_LETTERS + 64  # a character may be escaped as six; longer is no call


class CallObject(CallBody):
    """Reads the object from its brace on. `name` is known once it has been read.

    `names`: the functions that may be called; an object of another name is no call. None allows
    any name.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        super().__init__()
        self._names = names
        self._braces = Braces()
        self._first_return: int | None = None  # where the first object within it ended
        self._told: int | None = None

    def feed(self, text: str) -> str:
        for place, letter in enumerate(text):
            self._braces.step(letter)
            returned = self._braces.depth == 1 and letter == "}" and not self._braces.in_text
            if returned and self._first_return is None:
                self._first_return = len(self.raw) + place + 1
            if not self._braces.depth:
                self.raw += text[: place + 1]
                self.ended = True
                return text[place + 1 :]
        self.raw += text
        return ""

    def new_arguments(self) -> str:
        """The arguments' text that is new since the last call of this; sets `name`.

        If the object is not written in the usual order, all of it comes at the object's end. If it
        is no call, nothing comes.
        """
        if self._told is None and (head := HEAD.match(self.raw[:LONGEST_HEAD])):
            self.name = self._known(_meant(head[1]))
            self._told = head.end() if self.name is not None else None
        if self._told is not None:
            start = self._told
            self._told = len(self.raw) if self._first_return is None else self._first_return
            return self.raw[start : self._told]
        return self._whole() if self.ended else ""

    def _whole(self) -> str:
        said = _meant(self.raw)
        if not isinstance(said, dict):
            return ""
        name = said.get("name")
        arguments: Any = next((said[key] for key in ARGUMENTS if key in said), {}) or {}
        if isinstance(arguments, str):  # as JSON text, as in clients' messages
            arguments = _meant(arguments)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return ""
        self.name = self._known(name)
        if self.name is None:
            return ""
        return in_whole_characters(json.dumps(arguments, ensure_ascii=False))

    def _known(self, name: str | None) -> str | None:
        return name if name and (self._names is None or name in self._names) else None


def _meant(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
