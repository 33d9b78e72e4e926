"""Who gets a slot of the cache: bounded sessions, a bounded queue, and a way back."""

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
    """Hands out a model's slots on the event loop; at most `max_waiting` sessions wait."""

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
        """A slot for as long as the session lives. Raises Overloaded past the queue limit.

        With a text, it may hold the beginning of it.
        """
        async with self.slots(text=text) as [slot]:
            yield slot

    @contextlib.asynccontextmanager
    async def slots(
        self, smaller: Sequence[LanguageModel] = (), *, text: Text | None = None
    ) -> AsyncIterator[list[Slot]]:
        """A slot, and one in each of the further models, taken and freed together.

        The place is what is waited for: whoever holds it has a slot in any model with as many, so
        sessions that take several never wait for each other. Raises Overloaded as `slot` does.
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
            # Freed on the engine's thread: a cancelled task may be inside a forward right now.
            self._engine.call(lambda: self._release(held)).add_done_callback(
                _on_loop(self._places.release)
            )
            self._open -= 1

    def _release(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            slot.cache.release(slot)
            self._engine.leaves(slot)


def _on_loop(release: Callable[[], object]) -> Callable[[object], None]:
    loop = asyncio.get_running_loop()

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(release)

    return done
