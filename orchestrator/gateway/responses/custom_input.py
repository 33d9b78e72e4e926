"""The text that a custom tool takes; for the model, it is the only argument of a function."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

from pydantic_core import from_json

NAME = "input"
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {NAME: {"type": "string", "description": "all that the tool is given, as text"}},
    "required": [NAME],
    "additionalProperties": False,
}

HEAD = re.compile(rf'\s*\{{\s*"{NAME}"\s*:\s*"')
# The part of a string whose meaning is certain: up to its closing quote, or an incomplete escape.
WRITTEN = re.compile(r'(?:[^"\\]+|\\[^u]|\\u(?:[0-9a-fA-F]{4}|(?![0-9a-fA-F]{0,3}\Z)))*')
ESCAPED = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
ESCAPED_CHARACTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
UTF_16 = "utf-16-le"  # the encoding of JSON's escapes


def as_arguments(text: str) -> str:
    """The JSON arguments of an earlier call with this text."""
    return json.dumps({NAME: text}, ensure_ascii=False)


class InputReader:
    """Reads the text out of the arguments' JSON while that is being written.

    Models sometimes forget to escape: a backslash that begins no escape of JSON stays in the text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False
        self._decoder = codecs.getincrementaldecoder(UTF_16)("replace")  # of surrogate pairs

    def feed(self, arguments: str) -> str:
        """Reads more of the arguments; returns the text that has become certain."""
        self._held += arguments
        if not self._has_begun:
            head = HEAD.match(self._held)
            if head is None:
                return ""
            self._has_begun, self._held = True, self._held[head.end() :]
        written = WRITTEN.match(self._held)
        assert written is not None  # it may be empty
        self._held = self._held[written.end() :]
        unescaped = ESCAPED.sub(_unescape, written[0])
        return self._decoder.decode(unescaped.encode(UTF_16, "surrogatepass"))

    def rest(self) -> str:
        """The rest at the end; the whole text if the arguments do not begin as expected."""
        if self._has_begun:
            return self._decoder.decode(b"", final=True)
        try:
            parsed = from_json(self._held, allow_partial=True)
        except ValueError:
            return self._held
        if isinstance(parsed, dict) and isinstance(parsed.get(NAME), str):
            return str(parsed[NAME])
        return self._held if parsed else ""


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else ESCAPED_CHARACTERS.get(found[2], found[2])
