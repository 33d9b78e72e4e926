"""An argument between tags, read while it is being written."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from orchestrator.gateway.tools.fields import kind_of
from orchestrator.gateway.tools.literals import as_json, value_of
from orchestrator.text import overlap


class ValueTags(NamedTuple):
    """The tags around values.

    `end` is the value's own end tag, and `ends` are all tags that end a value. `edge` is text next
    to the tags, such as a line end, that is not part of the value.
    """

    end: str
    ends: tuple[str, ...]
    edge: str = ""


class Value(Protocol):
    """One argument. `new` is the JSON that the last `feed` made certain."""

    new: str
    ended: bool

    def feed(self, held: str) -> str:
        """Reads the held text; returns what it has not used, to be given again with more text."""


class TextValue:
    """Text without quotes, passed on while it is written."""

    def __init__(self, tags: ValueTags) -> None:
        self.new = ""
        self.ended = False
        self._tags = tags
        self._has_begun = False

    def feed(self, held: str) -> str:
        """Reads up to the text's end, or as far as is certain."""
        self.new = ""
        if not self._has_begun:
            if not held:
                return held
            self._has_begun, self.new = True, '"'
            held = held.removeprefix(self._tags.edge)
        position, mark = find_first(self._tags.ends, held)
        if mark:
            self.ended = True
            self.new += _escaped(held[:position].removesuffix(self._tags.edge)) + '"'
            return held[position:].removeprefix(self._tags.end)
        certain = held[: certain_length(self._tags.ends, held)].removesuffix(self._tags.edge)
        self.new += _escaped(certain)
        return held[len(certain) :]


class JsonValue:
    """A value of these types, passed on as a whole: JSON, a Python literal, or else text."""

    def __init__(self, tags: ValueTags, types: frozenset[str]) -> None:
        self.new = ""
        self.ended = False
        self._tags = tags
        self._types = types
        self._seen = 0

    def feed(self, held: str) -> str:
        """Reads once the value's end is there."""
        while True:
            position, mark = find_first(self._tags.ends, held, self._seen)
            if not mark:
                self._seen = max(self._seen, len(held) - max(map(len, self._tags.ends)))
                return held
            if not _within_text(held[:position]):
                break
            self._seen = position + 1
        self.ended = True
        edge = self._tags.edge
        self.new = self._value_as_json(held[:position].removeprefix(edge).removesuffix(edge))
        return held[position:].removeprefix(self._tags.end)

    def _value_as_json(self, text: str) -> str:
        try:
            value = value_of(text)
            if "string" in self._types and not kind_of(value) & self._types:
                value = text
            return as_json(value)
        except ValueError:
            return as_json(text)


def find_first(marks: tuple[str, ...], text: str, start: int = 0) -> tuple[int, str]:
    """Position and text of the first of these marks; the text is empty if there is none."""
    found = [(position, mark) for mark in marks if (position := text.find(mark, start)) >= 0]
    return min(found, default=(-1, ""))


def certain_length(marks: tuple[str, ...], text: str) -> int:
    """Length of the text without an end that may begin one of these marks."""
    return len(text) - max(overlap(text, mark) for mark in marks)


def _within_text(text: str) -> bool:
    """Whether what follows is within a JSON string; strings end within their line."""
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return False
    line = text[text.rfind("\n") + 1 :]
    return re.sub(r"\\.", "", line).count('"') % 2 == 1


def _escaped(text: str) -> str:
    return as_json(text)[1:-1]
