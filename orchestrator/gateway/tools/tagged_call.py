"""A call between tags, with a tag for each argument, read while it is being written."""

from __future__ import annotations

import re
from typing import NamedTuple

from orchestrator.gateway.tools.fields import is_text, property_of, types_of
from orchestrator.gateway.tools.literals import as_json
from orchestrator.gateway.tools.notation import CallBody, Functions
from orchestrator.gateway.tools.schemas import MAX_NAME_LETTERS, Function
from orchestrator.gateway.tools.tagged_value import (
    JsonValue,
    TextValue,
    Value,
    ValueTags,
    certain_length,
    find_first,
)

MAX_HEAD_LENGTH = MAX_NAME_LETTERS + 64  # longer is no head


class Head(NamedTuple):
    """A `tag` with a name. `full` matches it, the name as its group; `partial` may become one."""

    tag: str
    full: re.Pattern[str]
    partial: re.Pattern[str]


class Tags(NamedTuple):
    """The tags of a family of models.

    `end` ends a call and belongs to it. `ends` are all tags that may end a call; what is not `end`
    is left to be read next.
    """

    call: Head
    key: Head
    value: ValueTags
    end: str
    ends: tuple[str, ...]


class TaggedCall(CallBody):
    """A head with the name; for each argument a head with its key, the value, and its end.

    Text between tags is ignored.
    """

    def __init__(self, tags: Tags, functions: Functions | None) -> None:
        super().__init__()
        self._tags = tags
        self._functions = functions or {}
        self._function: Function | None = None
        self._held = ""
        self._new = ""
        self._value: Value | None = None
        self._has_arguments = False

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
        """Reads one piece of what is held; false if more text is needed."""
        if self.name is None:
            return self._read_name()
        return self._read_tag() if self._value is None else self._read_value(self._value)

    def _read_name(self) -> bool:
        name = self._read_head_name(self._tags.call)
        if name is None:
            return False
        if name:
            self.name, self._function = name, self._functions.get(name)
            self._new = "{"
        self.ended = not name
        return True

    def _read_head_name(self, head: Head) -> str | None:
        """Reads a head and returns its name; None if more text is needed, empty if it is no head.

        If it is no head, only the tag has been read.
        """
        text = self._held[:MAX_HEAD_LENGTH]
        match = head.full.match(text)
        if match is None and len(self._held) <= MAX_HEAD_LENGTH and head.partial.fullmatch(text):
            return None
        end = len(head.tag) if match is None else match.end()
        self.raw, self._held = self._held[:end], self._held[end:]
        return "" if match is None else match[1].strip()

    def _read_tag(self) -> bool:
        tags = (self._tags.key.tag, *self._tags.ends)
        at, tag = find_first(tags, self._held)
        if not tag:
            self._held = self._held[certain_length(tags, self._held) :]
            return False
        self._held = self._held[at:]
        if tag == self._tags.key.tag:
            return self._read_key()
        self._held = self._held.removeprefix(self._tags.end)
        self._new += "}"
        self.ended = True
        return True

    def _read_key(self) -> bool:
        key = self._read_head_name(self._tags.key)
        if key:
            schema = property_of(self._function, key)
            tags = self._tags.value
            self._value = TextValue(tags) if is_text(schema) else JsonValue(tags, types_of(schema))
            self._new += f"{', ' if self._has_arguments else ''}{as_json(key)}: "
            self._has_arguments = True
        return key is not None

    def _read_value(self, value: Value) -> bool:
        self._held = value.feed(self._held)
        self._new += value.new
        if value.ended:
            self._value = None
        return value.ended
