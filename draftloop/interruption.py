"""Ctrl-C while a process is still importing: one line instead of a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130  # a shell's exit status for SIGINT


@contextlib.contextmanager
def exit_on_interrupt(program: str) -> Iterator[None]:
    """Within the context, Ctrl-C ends the process at once: there is nothing yet to clean up.

    Code inside that installs its own SIGINT handler, as a role does once it listens, keeps it.
    Nothing changes if SIGINT was ignored or already handled, or in threads other than the main one.
    """
    usual = signal.default_int_handler
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not usual
    ):
        yield
        return

    def end(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):  # sys.stderr itself may be what was interrupted
            os.write(2, f"{program}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, usual)
