"""A call that is a head with the name, followed by the object of its arguments."""

from __future__ import annotations

import re

from orchestrator.gateway.tools.named_object import NamedObject
from orchestrator.gateway.tools.schemas import MAX_NAME_LETTERS

MAX_HEAD_LENGTH = MAX_NAME_LETTERS + 128


class HeadedCall(NamedObject):
    """`head` matches all before the brace; its groups are `name` and, if there is one, `id`.

    `partial` matches what may still become a head.
    """

    def __init__(self, head: re.Pattern[str], partial: re.Pattern[str]) -> None:
        super().__init__()
        self._head = head
        self._partial = partial

    def feed(self, text: str) -> str:
        if self.name is None:
            self.raw += text
            head = self._head.match(self.raw[:MAX_HEAD_LENGTH])
            if head is None:
                may_become_head = len(self.raw) <= MAX_HEAD_LENGTH and self._partial.fullmatch(
                    self.raw
                )
                return "" if may_become_head else self._end_as_no_call()
            groups = head.groupdict()
            self.name, self.written_id = groups["name"], groups.get("id", "")
            text = self.raw[head.end() :]
        return self._read_object(text)
