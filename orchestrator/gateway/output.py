"""The output of an answer in events: items, one after another, whose growth is told by events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.gateway.parts import CallPart, Content, Parts, Reasoning

Object = dict[str, Any]
# Log-probabilities of tokens, given by their numbers in the answer.
Logprobs = Callable[[Sequence[int]], Sequence[Object]]

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class TextBuffer:
    """A text that grows by pieces, joined only when it is read: joining for each piece is slow."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Appends a piece."""
        self._pieces.append(piece)

    def __str__(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class OutputItem(ABC):
    """An item of the output while it grows."""

    @property
    @abstractmethod
    def value(self) -> Object:
        """The item as it is now, as an answer shows it."""

    @abstractmethod
    def opening(self) -> Iterator[Object]:
        """Events that the item has begun."""

    @abstractmethod
    def add_text(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        """Events that the item has more text."""

    @abstractmethod
    def closing(self, status: str) -> Iterator[Object]:
        """Events that the item has ended."""


class Kinds(NamedTuple):
    """Makers of an API's items; they take the item's index in the output."""

    reasoning: Callable[[int], OutputItem]
    content: Callable[[int], OutputItem]
    call: Callable[[int, CallPart], OutputItem]


class Output:
    """All items of one answer; the last one may still grow."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._open_kind: Callable[..., OutputItem] | None = None

    @property
    def value(self) -> list[Object]:
        """The items so far."""
        return [item.value for item in self._items]

    @property
    def open(self) -> OutputItem | None:
        """The item that may still grow; None if there is none."""
        return self._open

    def feed(self, parts: Parts, logprobs: Logprobs = lambda tokens: ()) -> Iterator[Object]:
        """Events of the next parts. `logprobs` gives those of content's tokens."""
        for part in parts:
            match part:
                case Reasoning(text):
                    yield from self._grow(self._kinds.reasoning, text, ())
                case Content(text, tokens):
                    yield from self._grow(self._kinds.content, text, logprobs(tokens))
                case CallPart():
                    yield from self._call(part)

    def finish(self, status: str) -> Iterator[Object]:
        """Events of the end: the open item ends with this status."""
        if self._open is not None:
            yield from self._open.closing(status)
            self._open = None

    def finish_with_content(self, status: str) -> Iterator[Object]:
        """Like `finish`, but an answer without items gets an empty text."""
        if not self._items:
            yield from self._next(self._kinds.content)
        yield from self.finish(status)

    def _grow(
        self, kind: Callable[[int], OutputItem], text: str, logprobs: Sequence[Object]
    ) -> Iterator[Object]:
        if self._open is None or self._open_kind is not kind:
            yield from self._next(kind)
        assert self._open is not None
        yield from self._open.add_text(text, logprobs)

    def _call(self, part: CallPart) -> Iterator[Object]:
        if part.name:
            yield from self._next(self._kinds.call, part)
        if part.arguments and self._open is not None:
            yield from self._open.add_text(part.arguments, ())

    def _next(self, kind: Callable[..., OutputItem], *arguments: CallPart) -> Iterator[Object]:
        yield from self.finish(COMPLETED)
        self._open, self._open_kind = kind(len(self._items), *arguments), kind
        self._items.append(self._open)
        yield from self._open.opening()
