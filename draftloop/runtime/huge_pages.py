"""Tensors that lie in huge pages, where the system grants them.

A forward reads all weights once. In pages of 4 KiB that is a hundred thousand entries of the page
tables for 600 MB, and what other code had in the processor's table of them is gone afterwards.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK_BYTES = 64 << 20
LINE_BYTES = 64


class HugePages:
    """Memory cut off chunks one after the other; a chunk is free when its last tensor is."""

    def __init__(self) -> None:
        self._chunk = _chunk(0)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised CPU tensor that begins on a cache line; zeros as it happens."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        if self._used + size > len(self._chunk):
            self._chunk, self._used = _chunk(size), 0
        flat = torch.frombuffer(self._chunk, dtype=dtype, count=count, offset=self._used)
        self._used += -(-size // LINE_BYTES) * LINE_BYTES
        return flat.view(*shape)


def _chunk(least: int) -> mmap.mmap:
    """Fresh memory of at least so many bytes; nothing of it is used before it is written to."""
    chunk = mmap.mmap(-1, max(least, CHUNK_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            chunk.madvise(mmap.MADV_HUGEPAGE)
    return chunk


WEIGHTS = HugePages()
