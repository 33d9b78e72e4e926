"""Admission of sessions to slots of the KV cache, with a bounded queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from draftloop.errors import Overloaded
from draftloop.runtime.engine import Engine
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.metrics import QUEUE_TIME
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import Text


class Admission:
    """Assigns a model's slots on the event loop; at most `max_waiting` sessions wait."""

    def __init__(self, model: LanguageModel, engine: Engine, *, max_waiting: int) -> None:
        self._model = model
        self._engine = engine
        self._max_waiting = max_waiting
        self._waiting = 0
        self._open = 0
        self._places = asyncio.Semaphore(model.options.max_sessions)

    @property
    def open_sessions(self) -> int:
        """Sessions that hold a slot."""
        return self._open

    @property
    def waiting_sessions(self) -> int:
        """Sessions that wait for a slot."""
        return self._waiting

    @contextlib.asynccontextmanager
    async def slot(self, text: Text | None = None) -> AsyncIterator[Slot]:
        """A slot for as long as the session lives. Raises Overloaded if the queue is full.

        Given a text, the slot may already hold a prefix of it.
        """
        async with self.slots(text=text) as [slot]:
            yield slot

    @contextlib.asynccontextmanager
    async def slots(
        self, smaller: Sequence[LanguageModel] = (), *, text: Text | None = None
    ) -> AsyncIterator[list[Slot]]:
        """A slot, and one in each of the further models, taken and freed together.

        Sessions wait for one place only, which guarantees a slot in every model, as all have the
        same number. So sessions that take several slots cannot deadlock. Raises Overloaded if the
        queue is full.
        """
        if self._places.locked() and self._waiting >= self._max_waiting:
            raise Overloaded(
                f"sessions: at most {self._model.options.max_sessions} are held and "
                f"{self._max_waiting} wait"
            )
        self._waiting += 1
        try:
            with QUEUE_TIME.time():
                await self._places.acquire()
        finally:
            self._waiting -= 1
        held: list[Slot] = []
        self._open += 1
        try:
            for model in (self._model, *smaller):
                held.append(model.acquire(text))
            yield held
        finally:
            # Freed on the engine's thread, as a cancelled task may still be inside a forward.
            self._engine.call(lambda: self._release(held)).add_done_callback(
                _on_loop(self._places.release)
            )
            self._open -= 1

    def _release(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            slot.cache.release(slot)
            self._engine.session_ended(slot)


def _on_loop(release: Callable[[], object]) -> Callable[[object], None]:
    loop = asyncio.get_running_loop()

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no session waits any more
            loop.call_soon_threadsafe(release)

    return done
