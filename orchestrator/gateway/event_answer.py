"""Answers that are streamed as named events, or returned as the whole that the events add up to."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from typing import ClassVar

from orchestrator.gateway.answers import named_event
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.output import Kinds, Object, Output
from orchestrator.gateway.renaming import Renaming
from orchestrator.gateway.runs import Step
from orchestrator.gateway.work import Work


class EventAnswer(ABC):
    """Writes the answer of a chat with one choice while it runs. Every request needs a new one."""

    names: ClassVar[Renaming]
    id_prefix: ClassVar[str]

    def __init__(self, work: Work[ChatFormat], kinds: Kinds) -> None:
        self._work = work
        self._id = f"{self.id_prefix}_{work.answer_id.removeprefix(f'{work.form.id_prefix}-')}"
        self._output = Output(kinds)

    async def whole(self) -> Object:
        """The complete answer, returned once it has ended."""
        async with contextlib.aclosing(self._steps()) as steps:
            async for step in steps:
                for _event in self._taken(step):
                    pass
        return self._answer()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; those of one round are yielded as one piece."""
        begun = False
        async with contextlib.aclosing(self._steps()) as steps:
            async for step in steps:
                events = [] if begun else [*self._opening()]
                begun = True
                events.extend(self._taken(step))
                if step.finish_reason is not None:
                    events.extend(self._closing())
                if events:
                    yield b"".join(map(self._event, events))

    @abstractmethod
    def last_words(self, error: Exception) -> bytes:
        """The event that reports an error which ends the stream."""

    async def _steps(self) -> AsyncGenerator[Step, None]:
        with self.names():
            async with contextlib.aclosing(self._work.steps()) as steps:
                async for step in steps:
                    yield step

    @abstractmethod
    def _opening(self) -> Iterator[Object]:
        """Events that come before those of the first step."""

    @abstractmethod
    def _taken(self, step: Step) -> Iterator[Object]:
        """Events of a step; those of the last step also end the output."""

    @abstractmethod
    def _closing(self) -> Iterator[Object]:
        """Events that come after those of the last step."""

    @abstractmethod
    def _answer(self) -> Object:
        """The answer as it is now."""

    def _event(self, said: Object) -> bytes:
        return named_event(said["type"], said)
