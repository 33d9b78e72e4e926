"""Base of the notations in which models write calls: each family has its own."""

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
Mark = Callable[[str], str]  # writes a mark in Lark: as its single token, or as its text


class CallBody(ABC):
    """One call, read while it is being written.

    `name` is set once it is certain that this is a call. If it has `ended` without a name, it is no
    call, and `raw` is the text that was read. `written_id`: the id that the model wrote, if any.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.ended = False
        self.name: str | None = None
        self.written_id = ""

    @abstractmethod
    def feed(self, text: str) -> str:
        """Reads the next text; returns what follows the call's end."""

    @abstractmethod
    def new_arguments(self) -> str:
        """The JSON of the arguments that has become certain since the last call of this."""


class Notation(ABC):
    """Calls between marks.

    `begin` comes before calls and `end` after each, unless they are empty. `between` are marks
    around calls that have no meaning, and `inside` marks within a call. `opens_answer`: calls are
    the whole answer, and `begin` may be missing. `opening` is what every call begins with.
    """

    name: NotationName
    begin: str
    end = ""
    between: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    opening = "{"
    opens_answer = False
    id_letters = 24  # in the random part of a call's id
    id_prefix = "call_"

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that may be single tokens."""
        return tuple(mark for mark in (self.begin, self.end, *self.inside) if mark)

    @property
    def starts(self) -> tuple[str, ...]:
        """The marks with which calls begin within content."""
        return () if self.opens_answer else (self.begin,)

    def opens_call(self, text: str, after: str) -> bool | None:
        """Whether the text, `after` that mark, begins a call; None if more text is needed."""
        if text.startswith(self.opening):
            return True
        return None if self.opening.startswith(text) else False

    @abstractmethod
    def body(self, functions: Functions | None, text: str) -> CallBody:
        """A reader of a new call that begins like `text`.

        `functions` are those that may be called; None if that is not known.
        """

    @abstractmethod
    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """The Lark grammar of an answer that is one call, or `several`. Raises InvalidInput."""
