"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from draftloop.errors import DraftloopError
from draftloop.rpc.generation_client import CLOSED

Answer = TypeVar("Answer")


class LoopThread:
    """Runs coroutines for any number of threads; `stop` ends it, and so does the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        # Nothing enters the loop behind the word to stop. A thread that holds it may come again: a
        # collection of garbage, which begins wherever memory is asked for, cancels streams.
        self._door = threading.RLock()
        self._thread = threading.Thread(target=self._run_loop, name="draftloop-client", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What the coroutine returns or raises; Ctrl-C while waiting cancels it.

        Raises DraftloopError once the loop was stopped.
        """
        with self._door:
            if self._stopping:
                work.close()
                raise DraftloopError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise DraftloopError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Has it called on the loop's thread; not at all once the loop was stopped."""
        with self._door:
            if not self._stopping:
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancels what still runs; returns once the thread has ended. Twice is once."""
        with self._door:
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
