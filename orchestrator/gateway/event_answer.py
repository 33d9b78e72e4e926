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
                for _event in self._step_events(step):
                    pass
        return self._answer()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; those of one round are yielded as one piece."""
        has_begun = False
        async with contextlib.aclosing(self._steps()) as steps:
            async for step in steps:
                events = [] if has_begun else [*self._first_events()]
                has_begun = True
                events.extend(self._step_events(step))
                if step.finish_reason is not None:
                    events.extend(self._last_events())
                if events:
                    yield b"".join(map(self._event, events))

    @abstractmethod
    def error_event(self, error: Exception) -> bytes:
        """The event that reports an error which ends the stream."""

    async def _steps(self) -> AsyncGenerator[Step, None]:
        with self.names():
            async with contextlib.aclosing(self._work.steps()) as steps:
                async for step in steps:
                    yield step

    @abstractmethod
    def _first_events(self) -> Iterator[Object]:
        """Events that come before those of the first step."""

    @abstractmethod
    def _step_events(self, step: Step) -> Iterator[Object]:
        """Events of a step; those of the last step also end the output."""

    @abstractmethod
    def _last_events(self) -> Iterator[Object]:
        """Events that come after those of the last step."""

    @abstractmethod
    def _answer(self) -> Object:
        """The answer as it is now."""

    def _event(self, event: Object) -> bytes:
        return named_event(event["type"], event)
