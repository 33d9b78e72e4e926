"""What was freed goes back to the system.

Packing a model frees its matrices one by one, and glibc keeps what lies between others: a gigabyte
of a 300M model, twice its size.
"""

from __future__ import annotations

import ctypes


def give_back() -> bool:
    """Returns freed memory, where the C library can; whether there was any to return."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl and macOS have none
    return bool(trim and trim(0))
