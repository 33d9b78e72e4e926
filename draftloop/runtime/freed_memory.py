"""What was freed goes back to the system.

Packing a model frees its matrices one by one, and glibc keeps what lies between others: a gigabyte
of a 300M model, twice its size. Joining or rounding them on a GPU frees them as well, and torch
keeps them for itself: the other model, which may be on the same GPU, would not get them.
"""

from __future__ import annotations

import ctypes

import torch


def give_back() -> None:
    """Returns freed memory, where the C library can."""
    torch.cuda.empty_cache()  # does nothing where no GPU is used
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl and macOS have none
    if trim is not None:
        trim(0)
