"""A call that is one JSON object, read while it is being written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from orchestrator.gateway.tools.braces import Braces
from orchestrator.gateway.tools.literals import in_whole_characters
from orchestrator.gateway.tools.notation import CallBody
from orchestrator.gateway.tools.schemas import MAX_NAME_LETTERS

ARGUMENTS = ("arguments", "parameters")
# Nearly all models write the name first, so that arguments can be passed on as they come.
HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*,\s*"(?:'
    + "|".join(ARGUMENTS)
    + r')"\s*:\s*(?=\{)'
)
MAX_HEAD_LENGTH = 6 * MAX_NAME_LETTERS + 64  # a character may be escaped as six; longer is no call


class CallObject(CallBody):
    """Reads the object from its brace on. `name` is known once it has been read.

    `names`: the functions that may be called; an object of another name is no call. None allows
    any name.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        super().__init__()
        self._names = names
        self._braces = Braces()
        self._arguments_end: int | None = None  # where the first object within it ended
        self._passed_on: int | None = None

    def feed(self, text: str) -> str:
        for index, character in enumerate(text):
            self._braces.step(character)
            returned = self._braces.depth == 1 and character == "}" and not self._braces.in_text
            if returned and self._arguments_end is None:
                self._arguments_end = len(self.raw) + index + 1
            if not self._braces.depth:
                self.raw += text[: index + 1]
                self.ended = True
                return text[index + 1 :]
        self.raw += text
        return ""

    def new_arguments(self) -> str:
        """The arguments' text that is new since the last call of this; sets `name`.

        If the object is not written in the usual order, all of it comes at the object's end. If it
        is no call, nothing comes.
        """
        if self._passed_on is None and (head := HEAD.match(self.raw[:MAX_HEAD_LENGTH])):
            self.name = self._known_name(_parse_json(head[1]))
            self._passed_on = head.end() if self.name is not None else None
        if self._passed_on is not None:
            start = self._passed_on
            self._passed_on = len(self.raw) if self._arguments_end is None else self._arguments_end
            return self.raw[start : self._passed_on]
        return self._read_whole() if self.ended else ""

    def _read_whole(self) -> str:
        call = _parse_json(self.raw)
        if not isinstance(call, dict):
            return ""
        name = call.get("name")
        arguments: Any = next((call[key] for key in ARGUMENTS if key in call), {}) or {}
        if isinstance(arguments, str):  # as JSON text, as in clients' messages
            arguments = _parse_json(arguments)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return ""
        self.name = self._known_name(name)
        if self.name is None:
            return ""
        return in_whole_characters(json.dumps(arguments, ensure_ascii=False))

    def _known_name(self, name: str | None) -> str | None:
        return name if name and (self._names is None or name in self._names) else None


def _parse_json(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
