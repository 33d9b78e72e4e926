"""Runs the generations of one answer concurrently, as one sequence of steps."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from draftloop.tracing import Headers
from orchestrator.access import Caller
from orchestrator.figures import Piece
from orchestrator.front import Front
from orchestrator.loop import LENGTH, Generation
from orchestrator.shutdown import shutdown_error

EMPTY_PIECE = Piece(token_ids=(), sources=(), decode_texts=tuple)


@dataclass(frozen=True, slots=True)
class Step:
    """What one round added to a choice; the choice's last step has its finish reason."""

    choice: int
    piece: Piece
    finish_reason: str | None

    def without_output(self) -> Step:
        """The step without its text; if it is the last, the finish reason is `length`."""
        return Step(self.choice, EMPTY_PIECE, self.finish_reason and LENGTH)


Steps = asyncio.Queue[Step | Exception | None]


async def steps(
    front: Front, generations: Sequence[Generation], headers: Headers, caller: Caller
) -> AsyncGenerator[Step, None]:
    """Yields the steps of all generations until all have ended.

    The first error ends all of them, and so does the server's shutdown. Overloaded is raised before
    any step: either all are admitted, or none runs. `headers` of the HTTP request may name the
    trace that they are part of.

    Generations never wait for a slow reader: their output is bounded by their token limits. Closing
    the generator stops them within a round and waits until their sessions are freed.
    """
    queue: Steps = asyncio.Queue()
    with (
        contextlib.ExitStack() as admission,
        front.shutdown.notifying(functools.partial(_put_shutdown_error, queue)),
    ):
        admission.enter_context(front.admit(caller, len(generations)))
        tasks = [
            asyncio.create_task(
                _run(front, front.serving(generation, headers, caller), generation, index, queue)
            )
            for index, generation in enumerate(generations)
        ]
        # A slow reader counts as admitted for as long as something runs for it, and no longer.
        running = asyncio.gather(*tasks, return_exceptions=True)
        running.add_done_callback(lambda _: admission.close())
        try:
            unfinished = len(tasks)
            while unfinished:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    unfinished -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _put_shutdown_error(queue: Steps) -> None:
    """Makes the error that the server stops the next item, by emptying the queue before."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(shutdown_error())


async def _run(
    front: Front,
    serving: AbstractContextManager[None],
    generation: Generation,
    index: int,
    queue: Steps,
) -> None:
    try:
        with serving:
            async with front.shutdown.within(), contextlib.aclosing(generation.run()) as pieces:
                async for piece in pieces:
                    queue.put_nowait(Step(index, piece, generation.finish_reason))
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)
