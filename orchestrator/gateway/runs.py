"""The generations behind one answer, side by side, as one sequence of steps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from draftloop.errors import Unavailable
from draftloop.tracing import Headers
from orchestrator.access import Caller
from orchestrator.figures import Piece
from orchestrator.front import Front
from orchestrator.loop import Generation


@dataclass(frozen=True, slots=True)
class Step:
    """What one round added to a choice; the last one says why the choice ended."""

    choice: int
    piece: Piece
    finish_reason: str | None


Steps = asyncio.Queue[Step | Exception | None]


class Ending:
    """Ends whatever runs when the server has to stop: who waits is told, not cut off."""

    def __init__(self) -> None:
        self._running: set[Steps] = set()
        self._ended = False

    @contextlib.contextmanager
    def told(self, queue: Steps) -> Iterator[None]:
        """For as long as somebody takes steps from it. Raises Unavailable after the end."""
        if self._ended:
            raise _stopping()
        self._running.add(queue)
        try:
            yield
        finally:
            self._running.discard(queue)

    def end_all(self) -> None:
        """The next thing that anybody takes, now or later, is that the server stops."""
        self._ended = True
        for queue in self._running:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(_stopping())


def _stopping() -> Unavailable:
    return Unavailable("the server stops; send the request again")


async def steps(
    front: Front,
    generations: Sequence[Generation],
    headers: Headers,
    caller: Caller | None,
    ending: Ending,
) -> AsyncGenerator[Step, None]:
    """Yields until all have ended; the first error ends all of them, and so does `ending`.

    `headers` of the HTTP request may name the trace that they are part of.

    Overloaded comes before any step: either all are admitted or none is served. They never wait
    for a slow reader: what they produce is bounded by their token limits. Closing this stops them
    within a round and waits until their sessions are freed.
    """
    queue: Steps = asyncio.Queue()
    with contextlib.ExitStack() as room, ending.told(queue):
        room.enter_context(front.admitted(caller, len(generations)))
        tasks = [
            asyncio.create_task(
                _run(front.serving(generation, headers, caller), generation, index, queue)
            )
            for index, generation in enumerate(generations)
        ]
        # Whoever reads slowly has room for as long as something runs for him, and no longer.
        running = asyncio.gather(*tasks, return_exceptions=True)
        running.add_done_callback(lambda _: room.close())
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _run(
    serving: AbstractContextManager[None],
    generation: Generation,
    index: int,
    queue: Steps,
) -> None:
    try:
        with serving:
            async with contextlib.aclosing(generation.run()) as pieces:
                async for piece in pieces:
                    queue.put_nowait(Step(index, piece, generation.finish_reason))
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)
