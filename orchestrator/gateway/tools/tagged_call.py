"""A call between tags, with a tag for each argument, read while it is being written."""

from __future__ import annotations

import re
from typing import NamedTuple

from orchestrator.gateway.tools.fields import is_text, property_of, types_of
from orchestrator.gateway.tools.literals import as_json
from orchestrator.gateway.tools.notation import CallBody, Functions
from orchestrator.gateway.tools.schemas import MOST_NAME_LETTERS, Function
from orchestrator.gateway.tools.tagged_value import (
    JsonValue,
    TextValue,
    Value,
    ValueTags,
    certain_before,
    first_of,
)

LONGEST_HEAD = MOST_NAME_LETTERS + 64  # longer is no head


class Head(NamedTuple):
    """A `tag` with a name. `whole` matches it, the name as its group; `begun` may become one."""

    tag: str
    whole: re.Pattern[str]
    begun: re.Pattern[str]


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
        """Reads one piece of what is held; false if more text is needed."""
        if self.name is None:
            return self._read_name()
        return self._read_tag() if self._value is None else self._read_value(self._value)

    def _read_name(self) -> bool:
        name = self._named_by(self._tags.call)
        if name is None:
            return False
        if name:
            self.name, self._function = name, self._functions.get(name)
            self._new = "{"
        self.ended = not name
        return True

    def _named_by(self, head: Head) -> str | None:
        """Reads a head and returns its name; None if more text is needed, empty if it is no head.

        If it is no head, only the tag has been read.
        """
        said = self._held[:LONGEST_HEAD]
        found = head.whole.match(said)
        if found is None and len(self._held) <= LONGEST_HEAD and head.begun.fullmatch(said):
            return None
        at = len(head.tag) if found is None else found.end()
        self.raw, self._held = self._held[:at], self._held[at:]
        return "" if found is None else found[1].strip()

    def _read_tag(self) -> bool:
        tags = (self._tags.key.tag, *self._tags.ends)
        at, tag = first_of(tags, self._held)
        if not tag:
            self._held = self._held[certain_before(tags, self._held) :]
            return False
        self._held = self._held[at:]
        if tag == self._tags.key.tag:
            return self._read_key()
        self._held = self._held.removeprefix(self._tags.end)
        self._new += "}"
        self.ended = True
        return True

    def _read_key(self) -> bool:
        key = self._named_by(self._tags.key)
        if key:
            schema = property_of(self._function, key)
            tags = self._tags.value
            self._value = TextValue(tags) if is_text(schema) else JsonValue(tags, types_of(schema))
            self._new += f"{', ' if self._several else ''}{as_json(key)}: "
            self._several = True
        return key is not None

    def _read_value(self, value: Value) -> bool:
        self._held = value.feed(self._held)
        self._new += value.new
        if value.ended:
            self._value = None
        return value.ended
