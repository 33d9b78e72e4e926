"""Properties of the processor's vector unit that the compiled CPU kernels depend on.

Importing this module requires llvmlite, which knows the processor.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from typing import NamedTuple

from llvmlite import binding as llvm

# Multiply-adds in flight per core: two units, each starts one per cycle with a latency of four.
UNDER_WAY = 8
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64
STRIP_VECTORS = 4  # a strip, the unit of work of a thread, is this many vectors of outputs


class Tile(NamedTuple):
    """Number of output vectors computed at a time for some rows, and how.

    `keeps_weights`: registers hold the weights of a word while all rows are multiplied by them.
    Otherwise registers hold the rows' activations, and weights are loaded vector by vector.
    """

    vectors: int
    keeps_weights: bool


class VectorUnit(NamedTuple):
    """What the code generator must know about a CPU's vector registers."""

    lanes: int
    registers: int
    tiles: bool = False  # whether there are registers of bfloat16 matrices
    dots: bool = False  # whether pairs of bfloat16 are multiplied and added by one instruction
    byte_dots: bool = False  # the same for four bytes

    @property
    def strip(self) -> int:
        """Outputs in a strip; weights and bias are padded to a multiple of it."""
        return STRIP_VECTORS * self.lanes

    def padded(self, values: int) -> int:
        """The number of values rounded up to whole vectors."""
        return -(-values // self.lanes) * self.lanes

    def tile(self, rows: int, parts: int, products: int = 0) -> Tile:
        """The widest tile for `rows` rows whose sums and operands fit the registers.

        A vector of weights takes `parts` registers, and a product `products` before it is added. By
        default, weights are kept in registers. If that leaves fewer sums than multiply-adds in
        flight, each would wait for the previous one; then the rows' activations are kept instead.
        """
        keeping = next((v for v in (4, 2) if rows * v + parts * v + 1 < self.registers), 1)
        others = rows + products + 1
        changing = next((v for v in (4, 2) if rows * v + others <= self.registers), 1)
        if rows * keeping < UNDER_WAY and changing > keeping:
            return Tile(changing, keeps_weights=False)
        return Tile(keeping, keeps_weights=True)


AVX512 = VectorUnit(lanes=16, registers=32)
AVX2 = VectorUnit(lanes=8, registers=16)


def lanes_for(unit: VectorUnit, *widths: int) -> int:
    """The largest number of lanes that divides all of these widths; 0 if none does."""
    fitting = (unit.lanes, 8, 4)
    return next((n for n in fitting if not any(width % n for width in widths)), 0)


@functools.cache
def vector_unit() -> VectorUnit | None:
    """The vector unit to generate code for; None if our kernels cannot run here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    features = llvm.get_host_cpu_features()
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq")):
        tiles = all(features.get(name) for name in ("amx-tile", "amx-bf16")) and _may_use_tiles()
        dots, byte_dots = (bool(features.get(name)) for name in ("avx512bf16", "avx512vnni"))
        return AVX512._replace(tiles=tiles, dots=dots, byte_dots=byte_dots)
    return AVX2 if features.get("avx2") and features.get("fma") else None


def _may_use_tiles() -> bool:
    """Requests the use of tiles from Linux, which saves their registers only on request."""
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0  # type: ignore[no-any-return]
