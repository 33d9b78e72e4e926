"""One call between tags, a tag for each argument, read while it is being written."""

from __future__ import annotations

import re
from typing import Protocol

from orchestrator.gateway.tools.fields import is_text, kind_of, property_of, types_of
from orchestrator.gateway.tools.literals import as_json, value_of
from orchestrator.gateway.tools.notation import CallBody, Functions
from orchestrator.gateway.tools.schemas import MOST_NAME_LETTERS, Function
from orchestrator.text import overlap

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
CALL_END = "</tool_call>"
NEXT_TAGS = (PARAMETER, FUNCTION_END, CALL_END)
VALUE_ENDS = (PARAMETER_END, PARAMETER, FUNCTION_END)  # models forget the first one now and then
NAME_END = re.compile(r"[>\n]")
LONGEST_NAME = MOST_NAME_LETTERS + 64  # beyond it is none


class TaggedCall(CallBody):
    """`<function=name><parameter=key>value</parameter></function>`.

    Around a value one line end belongs to the tags. What stands between tags is passed over.
    """

    def __init__(self, functions: Functions | None) -> None:
        super().__init__()
        self._functions = functions or {}
        self._function: Function | None = None
        self._held = ""
        self._new = ""
        self._value: Value | None = None
        self._several = False

    def feed(self, text: str) -> str:
        self._held += text
        while not self.ended and self._step():
            pass
        if self.ended:
            rest, self._held = self._held, ""
            return rest
        if self.name is None:
            self.raw = self._held
        return ""

    def new_arguments(self) -> str:
        new, self._new = self._new, ""
        return new

    def _step(self) -> bool:
        """One piece of what is held; false where more text is needed."""
        if self.name is None:
            return self._read_name()
        return self._read_tag() if self._value is None else self._read_value(self._value)

    def _read_name(self) -> bool:
        name = self._name_behind(FUNCTION)
        if name is None:
            return False
        if name:
            self.name, self._function = name, self._functions.get(name)
            self._new = "{"
        self.ended = not name
        return True

    def _name_behind(self, tag: str) -> str | None:
        """What the tag names, which is held up to there; empty for nothing, None for not yet."""
        said = self._held[len(tag) : len(tag) + LONGEST_NAME]
        end = NAME_END.search(said)
        if end is None and len(said) < LONGEST_NAME:
            return None
        at = len(tag) + (len(said) if end is None else end.end())
        self.raw, self._held = self._held[:at], self._held[at:]
        return said[: end.start()].strip() if end is not None and end[0] == ">" else ""

    def _read_tag(self) -> bool:
        at, tag = _first(self._held, NEXT_TAGS)
        if not tag:
            self._held = self._held[_certain(self._held, NEXT_TAGS) :]
            return False
        self._held = self._held[at:]
        if tag == PARAMETER:
            return self._read_key()
        self._held = self._held.removeprefix(FUNCTION_END)
        self._new += "}"
        self.ended = True
        return True

    def _read_key(self) -> bool:
        key = self._name_behind(PARAMETER)
        if key:
            schema = property_of(self._function, key)
            self._value = TextValue() if is_text(schema) else JsonValue(types_of(schema))
            self._new += f"{', ' if self._several else ''}{as_json(key)}: "
            self._several = True
        return key is not None

    def _read_value(self, value: Value) -> bool:
        self._held = value.feed(self._held)
        self._new += value.new
        if value.ended:
            self._value = None
        return value.ended


class Value(Protocol):
    """One argument. What is not yet understood comes back from `feed`, to be given once more."""

    new: str
    ended: bool

    def feed(self, held: str) -> str:
        """Reads on."""


class TextValue:
    """Text as it stands, told while it is written."""

    def __init__(self) -> None:
        self.new = ""
        self.ended = False
        self._begun = False

    def feed(self, held: str) -> str:
        """Up to its end, or as far as is certain."""
        self.new = ""
        if not self._begun:
            if not held:
                return held
            self._begun, self.new = True, '"'
            held = held.removeprefix("\n")
        at, mark = _first(held, VALUE_ENDS)
        if mark:
            self.ended = True
            self.new += _escaped(held[:at].removesuffix("\n")) + '"'
            return held[at:].removeprefix(PARAMETER_END)
        certain = held[: _certain(held, VALUE_ENDS)].removesuffix("\n")
        self.new += _escaped(certain)
        return held[len(certain) :]


class JsonValue:
    """A value of these types, told as a whole: JSON, a literal of Python, or else text."""

    def __init__(self, types: frozenset[str]) -> None:
        self.new = ""
        self.ended = False
        self._types = types
        self._seen = 0

    def feed(self, held: str) -> str:
        """Up to its end."""
        while True:
            at, mark = _first(held, VALUE_ENDS, self._seen)
            if not mark:
                self._seen = max(self._seen, len(held) - len(PARAMETER_END))
                return held
            if not _within_text(held[:at]):
                break
            self._seen = at + 1
        self.ended = True
        self.new = self._meant(held[:at].removeprefix("\n").removesuffix("\n"))
        return held[at:].removeprefix(PARAMETER_END)

    def _meant(self, text: str) -> str:
        try:
            value = value_of(text)
            if "string" in self._types and not kind_of(value) & self._types:
                value = text
            return as_json(value)
        except ValueError:
            return as_json(text)


def _first(text: str, marks: tuple[str, ...], start: int = 0) -> tuple[int, str]:
    """Place and name of the first of these marks; no name where there is none."""
    found = [(at, mark) for mark in marks if (at := text.find(mark, start)) >= 0]
    return min(found, default=(-1, ""))


def _certain(text: str, marks: tuple[str, ...]) -> int:
    """How much of the text begins none of these marks."""
    return len(text) - max(overlap(text, mark) for mark in marks)


def _within_text(text: str) -> bool:
    """Whether what follows stands in a text of JSON, which ends within its line."""
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return False
    line = text[text.rfind("\n") + 1 :]
    return re.sub(r"\\.", "", line).count('"') % 2 == 1


def _escaped(text: str) -> str:
    return as_json(text)[1:-1]
