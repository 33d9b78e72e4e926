"""The hash of the noise: constants, for every device that computes it, and the key of a seed."""

from __future__ import annotations

MASK_64 = 2**64 - 1
MASK_32 = 2**32 - 1
# The golden ratio, as Weyl steps: by multiples of it, neighbours land far apart.
GOLDEN_64 = 0x9E3779B97F4A7C15
GOLDEN_32 = 0x9E3779B9
# MurmurHash3's 32-bit finalizer: twice a shift to the right, xored, and a product; then a shift.
MIX_STEPS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
MIX_SHIFT = 16


def mix64(value: int) -> int:
    """A bijection of 64-bit integers in which every input bit reaches every output bit.

    That of splitmix64 (Steele et al. 2014).
    """
    value = (value + GOLDEN_64) & MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)
