"""A process that freed many small objects keeps little of their memory."""

from __future__ import annotations

import ctypes
import sys

import pytest
import torch

from draftloop.runtime import freed_memory, memory_left
from tests.support.fresh_process import output_of

GPU = torch.device("cuda")
PROGRAM = """
import ctypes
from draftloop.runtime import freed_memory

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
parts = []
for _ in range(2000):
    parts.append(libc.malloc(65536))
    libc.memset(parts[-1], 1, 65536)
for number, part in enumerate(parts):
    if number % 100:  # what is left keeps glibc from returning the rest by itself
        libc.free(part)
before = resident()
freed_memory.release_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="this C library returns freed memory in its own time",
)
def test_freed_memory_is_returned_to_the_system() -> None:
    assert int(output_of(PROGRAM)) > 100 << 20


class FakeGpu:
    """A GPU with freed memory that torch's allocator keeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int, cached: int) -> None:
        self.free, self._kept = free, cached
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (self.free, 100))

    def _empty(self) -> None:
        self.free, self._kept = self.free + self._kept, 0


def test_memory_cached_by_torch_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantizing to eight bits frees half of the weights' memory, which sessions may use."""
    FakeGpu(monkeypatch, free=20, cached=30)
    assert memory_left.free_bytes(GPU) == 50


def test_cached_gpu_memory_is_released_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeGpu(monkeypatch, free=20, cached=30)
    freed_memory.release_freed_memory()
    assert card.free == 50
