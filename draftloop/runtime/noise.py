"""Gumbel noise as a pure function of (seed, absolute position, token id).

Counter-based, so that drafter, verifier, a replay and another replica draw the same noise
(Gumbel-max sampling; drafter invariance: arXiv 2408.07978). Integer hashing is exact on every
device; only the two logarithms may differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASK_64 = 2**64 - 1
MASK_32 = 2**32 - 1
# Constants of splitmix64 (Steele et al. 2014), MurmurHash3's 32-bit finalizer, the golden ratio.
GOLDEN_64 = 0x9E3779B97F4A7C15
GOLDEN_32 = 0x9E3779B9
KEPT_POSITIONS = 256


def mix64(value: int) -> int:
    """A bijection of 64-bit integers in which every input bit reaches every output bit."""
    value = (value + GOLDEN_64) & MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


def _mix32(value: Tensor) -> Tensor:
    """MurmurHash3's finalizer on 32-bit values held in int64; in place."""
    value.bitwise_xor_(value >> 16).mul_(0x85EBCA6B).bitwise_and_(MASK_32)
    value.bitwise_xor_(value >> 13).mul_(0xC2B2AE35).bitwise_and_(MASK_32)
    return value.bitwise_xor_(value >> 16)


class GumbelNoise:
    """Noise vectors of one seed, one per position, kept while they may be asked for again."""

    def __init__(self, seed: int, vocabulary_size: int, device: torch.device) -> None:
        self._seed_key = mix64(seed)
        self._token_keys = torch.arange(vocabulary_size, device=device) * GOLDEN_32 & MASK_32
        self._kept: dict[int, Tensor] = {}

    def at(self, positions: Sequence[int]) -> Tensor:
        """float32 [positions, vocabulary]: standard Gumbel variates."""
        missing = sorted(set(positions).difference(self._kept))
        if missing:
            self._make_room(len(missing), needed=set(positions))
            self._kept.update(zip(missing, self._draw(missing), strict=True))
        if len(positions) == 1:
            return self._kept[positions[0]][None]
        return torch.stack([self._kept[position] for position in positions])

    def _make_room(self, count: int, *, needed: set[int]) -> None:
        surplus = max(0, len(self._kept) + count - KEPT_POSITIONS)
        droppable = [position for position in self._kept if position not in needed]
        for position in droppable[:surplus]:
            del self._kept[position]

    def _draw(self, positions: Sequence[int]) -> Tensor:
        keys = [mix64(self._seed_key ^ position) for position in positions]
        device = self._token_keys.device
        low = torch.tensor([key & MASK_32 for key in keys], device=device)[:, None]
        high = torch.tensor([key >> 32 for key in keys], device=device)[:, None]
        hashed = _mix32((self._token_keys[None] + low).bitwise_and_(MASK_32))
        hashed = _mix32(hashed.bitwise_xor_(high))
        # (h + 1/2) / 2^32 in float64 is exact and never 0 or 1; log1p keeps the upper tail fine.
        uniform = hashed.to(torch.float64).add_(0.5).mul_(2.0**-32)
        exponential = uniform.neg_().log1p_().neg_()
        return exponential.log_().neg_().to(torch.float32)
