"""Detects forwards that will keep failing, so that the process ends and can be restarted."""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftloop.errors import DraftloopError

MAX_CONSECUTIVE_FAILURES = 8
# cudaErrorMemoryAllocation: the device still works.
OUT_OF_MEMORY = 2

# Message of torch's plain RuntimeError if a CPU is out of memory.
NO_MEMORY_ON_CPU = "DefaultCPUAllocator: can't allocate memory"

OnFailure = Callable[[BaseException, int], None]


class Ruin:
    """Counts consecutive failures of an engine's forwards; used on its thread.

    `on_failure` is called with the last error and the count if forwards will keep failing: after
    MAX_CONSECUTIVE_FAILURES failures, or at once if the device is unusable. `try_forward`, if
    given, then runs a forward of no request, and `on_failure` is called only if that fails too; so
    a single faulty request, repeated again and again, does not end the service. Invalid requests
    and lack of memory are not counted, as they say nothing about the next forward.
    """

    def __init__(
        self, on_failure: OnFailure, try_forward: Callable[[], None] | None = None
    ) -> None:
        self._on_failure = on_failure
        self._try_forward = try_forward
        self._in_a_row = 0

    def record_success(self) -> None:
        """Records a forward that succeeded."""
        self._in_a_row = 0

    def record_failure(self, error: Exception) -> None:
        """Records a forward that failed."""
        if _is_uninformative(error):
            return
        self._in_a_row += 1
        if is_fatal_to_device(error) or (
            self._in_a_row >= MAX_CONSECUTIVE_FAILURES and self._fails_without_request()
        ):
            self._on_failure(error, self._in_a_row)

    def record_engine_failure(self, error: BaseException) -> None:
        """Records that the engine's thread itself has failed: it runs nothing any more."""
        self._on_failure(error, self._in_a_row)

    def _fails_without_request(self) -> bool:
        """Whether a forward of no request fails too, if one can be run."""
        if self._try_forward is None:
            return True
        try:
            self._try_forward()
        except Exception as error:
            return not _is_uninformative(error)
        self._in_a_row = 0
        return False


def is_fatal_to_device(error: Exception) -> bool:
    """Whether the device is unusable for this process from now on, as after an illegal access."""
    return isinstance(error, torch.AcceleratorError) and not _is_out_of_memory(error)


def _is_uninformative(error: Exception) -> bool:
    return isinstance(error, (DraftloopError, MemoryError)) or _is_out_of_memory(error)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == OUT_OF_MEMORY
    return isinstance(error, torch.OutOfMemoryError) or NO_MEMORY_ON_CPU in str(error)
