"""How models write calls: each family in its own notation, which its chat template shows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from orchestrator.gateway.tools.schemas import Function

NotationName = Literal[
    "hermes", "llama3_json", "mistral", "qwen3_coder", "pythonic", "harmony", "deepseek", "kimi_k2",
    "glm45", "minimax_m2",
]  # fmt: skip
Functions = Mapping[str, Function]  # by name
Mark = Callable[[str], str]  # a mark in Lark's words: a token of its own, or its letters


class CallBody(ABC):
    """One call, read while it is being written.

    `name` is known once there is no doubt that it is a call. One that has `ended` without is none,
    and then `raw` is what has been read of it. `written_id`: where its model gives one.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.ended = False
        self.name: str | None = None
        self.written_id = ""

    @abstractmethod
    def feed(self, text: str) -> str:
        """Reads on; what stands behind its end comes back."""

    @abstractmethod
    def new_arguments(self) -> str:
        """What of the arguments, as JSON, has become certain since this was asked last."""


class Notation(ABC):
    """Calls between marks.

    `begin` stands before calls and `end` behind each, where they are not empty. `between` are marks
    without meaning around them, and `inside` those within a call. `opens_answer`: calls are the
    whole answer, and `begin` may be left out. `opening` is what every call begins with.
    """

    name: NotationName
    begin: str
    end = ""
    between: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    opening = "{"
    opens_answer = False
    id_letters = 24  # of the id of a call
    id_prefix = "call_"

    @property
    def marks(self) -> tuple[str, ...]:
        """All that may be tokens of their own."""
        return tuple(mark for mark in (self.begin, self.end, *self.inside) if mark)

    @property
    def starts(self) -> tuple[str, ...]:
        """Where calls begin amid content."""
        return () if self.opens_answer else (self.begin,)

    def opens_call(self, text: str, after: str) -> bool | None:
        """Whether a call begins so, `after` that mark; None where more text will tell."""
        if text.startswith(self.opening):
            return True
        return None if self.opening.startswith(text) else False

    @abstractmethod
    def body(self, functions: Functions | None, text: str) -> CallBody:
        """Of a new call, which begins as `text` does.

        `functions` are those that may be called, where that is known.
        """

    @abstractmethod
    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """The grammar of an answer that is one call, or `several`. Raises InvalidInput."""
