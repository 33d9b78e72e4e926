"""Ctrl-C while a process only imports: a line, and no traceback from wherever that was."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130  # a shell's exit status for SIGINT


@contextlib.contextmanager
def ends_at_once(who: str) -> Iterator[None]:
    """Within it Ctrl-C ends the process where it stands: nothing is there yet to be unwound.

    Who takes SIGINT over within it, as a role does once it listens, has it. Where SIGINT is ignored
    or was taken over before, and in threads beside the main one, nothing changes.
    """
    usual = signal.default_int_handler
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not usual
    ):
        yield
        return

    def end(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):  # not by sys.stderr, in which this may have come
            os.write(2, f"{who}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, usual)
