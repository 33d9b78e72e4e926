"""When forwards fail for good: what a service cannot mend by itself, a process begun anew can."""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftloop.errors import DraftloopError

MOST_IN_A_ROW = 8
# What CUDA calls cudaErrorMemoryAllocation: the device is as good as before.
OUT_OF_MEMORY = 2

# Of torch's plain RuntimeError where a CPU has no memory left.
NO_MEMORY_ON_CPU = "DefaultCPUAllocator: can't allocate memory"

Ended = Callable[[BaseException, int], None]


class Ruin:
    """Counts an engine's forwards that failed one after the other; used on its thread.

    `ended` is called, with the last error and their number, where they will go on to fail: after so
    many in a row, or at once where a device is ruined. `tries`, where it is given, runs a forward
    that is of no request and raises what that does: one request that none can run, and that is
    asked for again and again, ends nobody. A request's own mistake and a batch that found no memory
    say nothing of the next forward, neither good nor bad.
    """

    def __init__(self, ended: Ended, tries: Callable[[], None] | None = None) -> None:
        self._ended = ended
        self._tries = tries
        self._in_a_row = 0

    def passed(self) -> None:
        """Takes in a forward that went well."""
        self._in_a_row = 0

    def failed(self, error: Exception) -> None:
        """Takes in one that did not."""
        if _says_nothing(error):
            return
        self._in_a_row += 1
        if ruins_the_device(error) or (self._in_a_row >= MOST_IN_A_ROW and self._fails_for_all()):
            self._ended(error, self._in_a_row)

    def fallen(self, error: BaseException) -> None:
        """Takes in that the engine itself failed: nothing runs there any more."""
        self._ended(error, self._in_a_row)

    def _fails_for_all(self) -> bool:
        """Whether a forward fails that is of no request, as far as one can be run."""
        if self._tries is None:
            return True
        try:
            self._tries()
        except Exception as error:
            return not _says_nothing(error)
        self._in_a_row = 0
        return False


def ruins_the_device(error: Exception) -> bool:
    """Whether nothing will run there any more in this process, as after an illegal access."""
    return isinstance(error, torch.AcceleratorError) and not _lacked_memory(error)


def _says_nothing(error: Exception) -> bool:
    return isinstance(error, (DraftloopError, MemoryError)) or _lacked_memory(error)


def _lacked_memory(error: Exception) -> bool:
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == OUT_OF_MEMORY
    return isinstance(error, torch.OutOfMemoryError) or NO_MEMORY_ON_CPU in str(error)
