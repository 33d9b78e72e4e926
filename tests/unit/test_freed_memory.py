"""A process that freed many small things holds little of them afterwards."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

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
freed_memory.give_back()
print(before - resident())
"""


@pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="this C library returns freed memory in its own time",
)
def test_freed_memory_goes_back_to_the_system() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(ran.stdout) > 100 << 20
