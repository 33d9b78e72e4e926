"""Returns freed memory to the system.

Packing a model frees its matrices one by one, and glibc keeps freed memory between other blocks: a
gigabyte for a 300M model, twice its size. On a GPU, joining or rounding matrices also frees memory,
which torch keeps; another model's process on the same GPU could not use it.
"""

from __future__ import annotations

import ctypes

import torch


def release_freed_memory() -> None:
    """Returns freed memory, if the C library can."""
    torch.cuda.empty_cache()  # does nothing where no GPU is used
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl and macOS have none
    if trim is not None:
        trim(0)
