"""Gumbel noise as a pure function of (seed, absolute position, token id).

Counter-based, so that drafter, verifier, a replay and another replica draw the same noise
(Gumbel-max sampling; drafter invariance: arXiv 2408.07978). Integer hashing is exact on every
device; only the two logarithms may differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftloop.runtime import cpu_noise
from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.hashing import GOLDEN_32, MASK_32, MIX_SHIFT, MIX_STEPS, mix64

# Maximum positions, and values, that are kept (16 MiB).
KEPT_POSITIONS, KEPT_VALUES = 256, 1 << 22
# Maximum positions, and values, computed at a time: one by one they would cost far more.
DRAWN_AT_ONCE, MAX_VALUES = 8, 1 << 16
# The same on a GPU, where almost all of the time goes into launching two dozen kernels.
DRAWN_ON_GPU, MAX_VALUES_ON_GPU = 32, 1 << 20

Words = npt.NDArray[np.unsignedinteger]


def _mix32(value: Tensor) -> Tensor:
    """`MIX_STEPS` on 32-bit values held in int64; in place."""
    for shift, factor in MIX_STEPS:
        value.bitwise_xor_(value >> shift).mul_(factor).bitwise_and_(MASK_32)
    return value.bitwise_xor_(value >> MIX_SHIFT)


class GumbelNoise:
    """Noise vectors of one seed, one per position, cached while they may be needed again."""

    def __init__(self, seed: int, vocabulary_size: int, device: torch.device) -> None:
        self._seed_key = mix64(seed)
        self._vocabulary_size = vocabulary_size
        self._device = device
        on_gpu = device.type == "cuda"
        self._at_once = (DRAWN_ON_GPU, MAX_VALUES_ON_GPU) if on_gpu else (DRAWN_AT_ONCE, MAX_VALUES)
        self._kept: dict[int, Tensor] = {}

    def at(self, positions: Sequence[int]) -> Tensor:
        """float32 [positions, vocabulary]: standard Gumbel variates."""
        return torch.stack(self.rows(positions))

    def rows(self, positions: Sequence[int]) -> list[Tensor]:
        """The rows of `at`, each a contiguous tensor."""
        self.prepare(positions)
        return [self._kept[position] for position in positions]

    def prepare(self, positions: Sequence[int]) -> None:
        """Computes and caches the noise of these positions, ahead of `at` and `rows`."""
        missing = sorted(set(positions).difference(self._kept))
        if missing:
            missing += self._upcoming_positions(missing)
            self._make_room(len(missing), needed=set(positions))
            self._kept.update(zip(missing, self._draw(missing), strict=True))

    def _upcoming_positions(self, positions: Sequence[int]) -> list[int]:
        """Positions after these that will be needed next."""
        count, values = self._at_once
        most = min(count, values // self._vocabulary_size)
        upcoming = range(positions[-1] + 1, positions[-1] + 1 + most - len(positions))
        return [position for position in upcoming if position not in self._kept]

    def _make_room(self, count: int, *, needed: set[int]) -> None:
        most = min(KEPT_POSITIONS, KEPT_VALUES // self._vocabulary_size)
        surplus = max(0, len(self._kept) + count - most)
        droppable = [position for position in self._kept if position not in needed]
        for position in droppable[:surplus]:
            del self._kept[position]

    def _draw(self, positions: Sequence[int]) -> Tensor:
        keys = np.array([mix64(self._seed_key ^ position) for position in positions], np.uint64)
        if self._device.type == "cpu":
            if UNIT is not None:
                return cpu_noise.draw(self._vocabulary_size, keys)
            hashed = _hash_on_cpu(self._vocabulary_size, keys)
            return torch.from_numpy(_gumbel_on_cpu(hashed))
        return _gumbel(_hash(self._vocabulary_size, keys, self._device))


def _hash_on_cpu(vocabulary_size: int, keys: Words) -> Words:
    """uint32 [keys, vocabulary]; numpy's uint32 wraps around, in a third of torch's time."""
    tokens = np.arange(vocabulary_size, dtype=np.uint32) * np.uint32(GOLDEN_32)
    low, high = keys.astype(np.uint32)[:, None], (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    return _mix32_on_cpu(_mix32_on_cpu(tokens + low) ^ high)


def _mix32_on_cpu(value: Words) -> Words:
    """`_mix32` on uint32; in place."""
    for shift, factor in MIX_STEPS:
        value ^= value >> np.uint32(shift)
        value *= np.uint32(factor)
    value ^= value >> np.uint32(MIX_SHIFT)
    return value


def _gumbel_on_cpu(hashed: Words) -> npt.NDArray[np.float32]:
    """`_gumbel` on uint32."""
    value = hashed.astype(np.float64)
    np.subtract(2.0**32 - 0.5, value, out=value)
    value *= 2.0**-32
    for _ in range(2):
        np.negative(np.log(value, out=value), out=value)
    return value.astype(np.float32)


def _hash(vocabulary_size: int, keys: Words, device: torch.device) -> Tensor:
    """The 32-bit values of `_hash_on_cpu`, held in int64, on any device."""
    tokens = torch.arange(vocabulary_size, device=device) * GOLDEN_32
    low = torch.from_numpy((keys & np.uint64(MASK_32)).astype(np.int64)).to(device)[:, None]
    high = torch.from_numpy((keys >> np.uint64(32)).astype(np.int64)).to(device)[:, None]
    return _mix32(_mix32((tokens[None] + low).bitwise_and_(MASK_32)).bitwise_xor_(high))


def _gumbel(hashed: Tensor) -> Tensor:
    """Standard Gumbel variates of 32-bit values h: -log(-log(1 - (h + 1/2) / 2^32)).

    In float64 the argument is exact and never 0 or 1, so both tails are correct.
    """
    uniform = hashed.to(torch.float64).neg_().add_(2.0**32 - 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)
