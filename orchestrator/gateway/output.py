"""What an answer in events is made of: one thing after another, each step of which is an event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.gateway.parts import CallPart, Content, Parts, Reasoning

Object = dict[str, Any]
# Of tokens, by their numbers in the answer.
Logprobs = Callable[[Sequence[int]], Sequence[Object]]

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class Grown:
    """A text that is put together when it is asked for: copying it with every piece is slow."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Some more."""
        self._pieces.append(piece)

    def __str__(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class Growing(ABC):
    """One that grows."""

    @property
    @abstractmethod
    def said(self) -> Object:
        """What an answer shows of it."""

    @abstractmethod
    def opening(self) -> Iterator[Object]:
        """That it is there."""

    @abstractmethod
    def growing(self, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        """That it has some more text."""

    @abstractmethod
    def closing(self, status: str) -> Iterator[Object]:
        """That there is no more of it."""


class Kinds(NamedTuple):
    """What makes those of an API, for their places in the output."""

    reasoning: Callable[[int], Growing]
    content: Callable[[int], Growing]
    call: Callable[[int, CallPart], Growing]


class Output:
    """All of one answer, of which the last one may still grow."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._all: list[Growing] = []
        self._open: Growing | None = None
        self._made_by: Callable[..., Growing] | None = None

    @property
    def said(self) -> list[Object]:
        """What there is so far."""
        return [one.said for one in self._all]

    @property
    def open(self) -> Growing | None:
        """What may still grow."""
        return self._open

    def feed(self, parts: Parts, logprobs: Logprobs = lambda tokens: ()) -> Iterator[Object]:
        """Events of some more text."""
        for part in parts:
            match part:
                case Reasoning(text):
                    yield from self._grow(self._kinds.reasoning, text, ())
                case Content(text, tokens):
                    yield from self._grow(self._kinds.content, text, logprobs(tokens))
                case CallPart():
                    yield from self._call(part)

    def finish(self, status: str) -> Iterator[Object]:
        """Events of the end."""
        if self._open is not None:
            yield from self._open.closing(status)
            self._open = None

    def finish_with_content(self, status: str) -> Iterator[Object]:
        """The same; an answer that says nothing says an empty text."""
        if not self._all:
            yield from self._next(self._kinds.content)
        yield from self.finish(status)

    def _grow(
        self, kind: Callable[[int], Growing], text: str, logprobs: Sequence[Object]
    ) -> Iterator[Object]:
        if self._open is None or self._made_by is not kind:
            yield from self._next(kind)
        assert self._open is not None
        yield from self._open.growing(text, logprobs)

    def _call(self, part: CallPart) -> Iterator[Object]:
        if part.name:
            yield from self._next(self._kinds.call, part)
        if part.arguments and self._open is not None:
            yield from self._open.growing(part.arguments, ())

    def _next(self, kind: Callable[..., Growing], *said: CallPart) -> Iterator[Object]:
        yield from self.finish(COMPLETED)
        self._open, self._made_by = kind(len(self._all), *said), kind
        self._all.append(self._open)
        yield from self._open.opening()
