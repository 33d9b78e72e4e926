"""What the compiled CPU kernels must know of the processor's vectors.

Importing this module requires llvmlite, which knows the processor.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from typing import NamedTuple

from llvmlite import binding as llvm

# Multiply-adds that a core has under way: two units, each begins one a cycle and takes four.
UNDER_WAY = 8
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64
STRIP_VECTORS = 4  # a strip, the unit of work of a thread, is this many vectors of outputs


class Tile(NamedTuple):
    """Vectors of outputs that some rows are multiplied into at a time, and how.

    `keeps_weights`: registers hold the weights of a word while they multiply all rows; else the
    rows' activations, while they are multiplied by one vector of weights after the other.
    """

    vectors: int
    keeps_weights: bool


class VectorUnit(NamedTuple):
    """What the generator must know of a CPU's vector registers."""

    lanes: int
    registers: int
    tiles: bool = False  # whether there are registers of bfloat16 matrices
    dots: bool = False  # whether pairs of bfloat16 are multiplied and added by one instruction
    byte_dots: bool = False  # whether four bytes are

    @property
    def strip(self) -> int:
        """Outputs in a strip; weights and bias are padded to a multiple of it."""
        return STRIP_VECTORS * self.lanes

    def padded(self, values: int) -> int:
        """So many values and what fills their last vector."""
        return -(-values // self.lanes) * self.lanes

    def tile(self, rows: int, parts: int) -> Tile:
        """The widest tile for `rows` rows whose sums fit the registers beside what is multiplied.

        A vector of weights takes `parts` registers. By default its weights are loaded once. Where
        that leaves fewer sums than multiply-adds are under way at a time, each would wait for the
        one before: then the rows' activations are.
        """
        keeping = next((v for v in (4, 2) if rows * v + parts * v + 1 < self.registers), 1)
        changing = next((v for v in (4, 2) if rows * v + rows + 1 <= self.registers), 1)
        if rows * keeping < UNDER_WAY and changing > keeping:
            return Tile(changing, keeps_weights=False)
        return Tile(keeping, keeps_weights=True)


AVX512 = VectorUnit(lanes=16, registers=32)
AVX2 = VectorUnit(lanes=8, registers=16)


def lanes_for(unit: VectorUnit, *widths: int) -> int:
    """Most lanes of a vector that divide all of these widths; 0 where none does."""
    fitting = (unit.lanes, 8, 4)
    return next((n for n in fitting if not any(width % n for width in widths)), 0)


@functools.cache
def vector_unit() -> VectorUnit | None:
    """The vector unit to generate for; None where no kernel of this module can run."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    features = llvm.get_host_cpu_features()
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq")):
        tiles = all(features.get(name) for name in ("amx-tile", "amx-bf16")) and _may_use_tiles()
        dots, byte_dots = (bool(features.get(name)) for name in ("avx512bf16", "avx512vnni"))
        return AVX512._replace(tiles=tiles, dots=dots, byte_dots=byte_dots)
    return AVX2 if features.get("avx2") and features.get("fma") else None


def _may_use_tiles() -> bool:
    """Asks the system, which saves their registers for those processes alone that have asked."""
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0  # type: ignore[no-any-return]
