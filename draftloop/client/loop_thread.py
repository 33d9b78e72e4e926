"""An event loop on its own thread, for callers that have none."""

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
    """Runs coroutines for any number of threads; ends with `stop` or with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        # No work enters the loop after it was told to stop. The lock is reentrant, because garbage
        # collection, which may run in a thread that holds the lock, cancels streams.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run_loop, name="draftloop-client", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Runs the coroutine and returns its result or raises its error.

        Ctrl-C while waiting cancels it. Raises DraftloopError once the loop was stopped.
        """
        with self._lock:
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
        """Schedules `callback` on the loop's thread; does nothing once the loop was stopped."""
        with self._lock:
            if not self._stopping:
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancels what still runs; returns once the thread has ended. May be called repeatedly."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
