"""A call in Python's syntax, `name(key=value)`, read while it is being written."""

from __future__ import annotations

import re

from orchestrator.gateway.tools.literals import as_json, value_of
from orchestrator.gateway.tools.notation import CallBody, Functions
from orchestrator.gateway.tools.schemas import MAX_NAME_LETTERS

WORD = re.compile(r"[^\W\d][\w.\-]*")
HEAD = re.compile(r"([^\W\d][\w.\-]*)\s*\(")
PARTIAL_HEAD = re.compile(r"[^\W\d][\w.\-]*\s*")
ARGUMENT = re.compile(r"\s*([^\W\d][\w.\-]*)\s*=\s*(\S.*)", re.DOTALL)
MAX_HEAD_LENGTH = MAX_NAME_LETTERS + 64
BRACKET_DEPTHS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


class PythonCall(CallBody):
    """Passes arguments on one by one. The first one shows that this is a call.

    A later one that is no literal is passed on unchanged, like wrong JSON in other notations.
    """

    def __init__(self, functions: Functions | None) -> None:
        super().__init__()
        self._functions = functions
        self._head_name = ""  # the name, once its bracket has been read
        self._argument = ""
        self._new = ""
        self._depth = 1
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> str:
        if not self._head_name:
            self.raw += text
            head = HEAD.match(self.raw[:MAX_HEAD_LENGTH])
            if head is None or not self._is_known(head[1]):
                return self._wait_or_end()
            self._head_name, text = head[1], self.raw[head.end() :]
            self.raw = self.raw[: head.end()]
        start = 0
        for index, character in enumerate(text):
            if self._ends_argument(character):
                self._argument += text[start:index]
                self._take_argument(last=not self._depth)
                start = index + 1
                if self.ended:
                    self.raw += text[:start]
                    return text[start:]
        self._argument += text[start:]
        self.raw += "" if self.name else text
        return ""

    def new_arguments(self) -> str:
        new, self._new = self._new, ""
        return new

    def _is_known(self, name: str) -> bool:
        return self._functions is None or name in self._functions

    def _wait_or_end(self) -> str:
        """Waits for more of the head, or ends as no call; then returns what follows the word."""
        if len(self.raw) <= MAX_HEAD_LENGTH and PARTIAL_HEAD.fullmatch(self.raw):
            return ""
        word = WORD.match(self.raw)
        end = 0 if word is None else word.end()
        rest, self.raw = self.raw[end:], self.raw[:end]
        self.ended = True
        return rest

    def _ends_argument(self, character: str) -> bool:
        """Reads a character; whether it is a comma or bracket of the call itself."""
        if self._quote:
            if character == self._quote and not self._escaped:
                self._quote = ""
            self._escaped = character == "\\" and not self._escaped
            return False
        if character in "'\"":
            self._quote = character
        self._depth += BRACKET_DEPTHS.get(character, 0)
        return not self._depth or (self._depth == 1 and character == ",")

    def _take_argument(self, *, last: bool) -> None:
        """Takes the argument that has ended."""
        argument, self._argument = self._argument, ""
        self.ended = last
        if argument.strip() or not last:
            written = _as_member(argument)
            if written is None and self.name is None:
                self.ended = True  # no call
                return
            self._new += "{" if self.name is None else ", "
            self._new += argument.strip() if written is None else written
        elif self.name is None:
            self._new = "{"
        self.name = self._head_name
        if last:
            self._new += "}"


def _as_member(argument: str) -> str | None:
    """`key=value` as a member of a JSON object; None if it is no such argument."""
    found = ARGUMENT.fullmatch(argument)
    if found is None:
        return None
    try:
        return f"{as_json(found[1])}: {as_json(value_of(found[2]))}"
    except ValueError:
        return None
