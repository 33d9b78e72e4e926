"""Tensors in huge pages, if the system provides them.

A forward reads all weights once. With pages of 4 KiB, that takes more than a hundred thousand page
table entries for 600 MB, which evict all other code's entries from the processor's TLB.
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
    """Allocates from chunks one after the other; a chunk is freed with its last tensor."""

    def __init__(self) -> None:
        self._chunk = _chunk(0)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised CPU tensor, aligned to a cache line; in practice it holds zeros."""
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
    """Maps new memory of at least `least` bytes; pages take no memory before they are written."""
    chunk = mmap.mmap(-1, max(least, CHUNK_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            chunk.madvise(mmap.MADV_HUGEPAGE)
    return chunk


WEIGHTS = HugePages()
