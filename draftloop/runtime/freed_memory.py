"""What was freed goes back to the system.

Packing a model frees its matrices one by one, and glibc keeps what lies between others: a gigabyte
of a 300M model, twice its size.
"""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Returns freed memory, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl and macOS have none
    if trim is not None:
        trim(0)
