"""Windows on the packed token stream: shuffled, without repetition within a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Stream = npt.NDArray[np.int16]

BLOCK = 2048  # tokens that stay together; every window length divides it
GROUP_BLOCKS = 128  # blocks from anywhere in the stream whose windows are shuffled together
ROUND = 200  # number of windows within which every text of a mixture has its share


@lru_cache(maxsize=32)
def order_of(count: int, *seed: int) -> npt.NDArray[np.int64]:
    """A permutation of the numbers below `count`; cached, since every window needs it."""
    return np.random.default_rng(seed).permutation(count)


@dataclass(frozen=True, slots=True)
class Windows:
    """Window number n is a pure function of (stream, seed, length, n), so runs resume exactly.

    Neighbouring windows come from different files: when a group stayed within some thirty files,
    the loss fell within each group and jumped at the next. Every pass cuts the stream differently.
    """

    stream: Stream
    seed: int

    @property
    def groups(self) -> int:
        """Whole groups in one pass over the stream."""
        return (len(self.stream) - 1) // (BLOCK * GROUP_BLOCKS)

    def start(self, number: int, length: int) -> int:
        """Where window `number` begins in the stream."""
        per_block = BLOCK // length
        group, member = divmod(number, per_block * GROUP_BLOCKS)
        passed, place = divmod(group, self.groups)
        blocks = order_of(self.groups * GROUP_BLOCKS, self.seed, passed)
        inner = order_of(per_block * GROUP_BLOCKS, self.seed, passed, place)
        block, part = divmod(int(inner[member]), per_block)
        start = int(blocks[place * GROUP_BLOCKS + block]) * BLOCK + part * length
        return start + self._shift(passed)

    def _shift(self, passed: int) -> int:
        """Random offset of a pass, so that tokens beyond the last whole group are used as well."""
        left = len(self.stream) - 1 - self.groups * GROUP_BLOCKS * BLOCK
        return int(np.random.default_rng((self.seed, passed, 1)).integers(left + 1))

    def batch(self, first: int, count: int, length: int) -> Tensor:
        """Tokens [count, length + 1]: inputs without the last column, targets without the first.

        Raises ValueError if the stream is shorter than one group of windows.
        """
        rows = [self.window(number, length) for number in range(first, first + count)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def window(self, number: int, length: int) -> Stream:
        """Window `number`, [length + 1]. Raises ValueError: see `batch`."""
        if not self.groups:
            least = BLOCK * GROUP_BLOCKS
            raise ValueError(f"a stream needs more than {least} tokens, not {len(self.stream)}")
        start = self.start(number, length)
        window: Stream = self.stream[start : start + length + 1]
        return window


class Mixture:
    """Windows of several texts, each with a share; a text that is used up starts again.

    Within every `ROUND` windows, each text has its share, in an order given by the seed.
    """

    def __init__(self, parts: Sequence[tuple[Windows, float]], seed: int) -> None:
        """Raises ValueError unless every share is above 0 and their sum is 1."""
        shares = [share for _, share in parts]
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"shares must be above 0 and together 1, got {shares}")
        self._windows = [windows for windows, _ in parts]
        ends = np.round(np.cumsum([0.0, *shares]) * ROUND).astype(int)
        self._counts = np.diff(ends)
        texts = np.repeat(np.arange(len(parts)), self._counts)
        self._order = np.random.default_rng(seed).permutation(texts)
        # for each window of a round, its number among those of its text
        ranks = [(self._order[:place] == text).sum() for place, text in enumerate(self._order)]
        self._ranks = np.array(ranks)

    def batch(self, first: int, count: int, length: int) -> Tensor:
        """Tokens [count, length + 1]. Raises ValueError for a text shorter than one group."""
        rows = [self._window(number, length) for number in range(first, first + count)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _window(self, number: int, length: int) -> Stream:
        passed, place = divmod(number, ROUND)
        text = self._order[place]
        within = passed * int(self._counts[text]) + int(self._ranks[place])
        window: Stream = self._windows[text].window(within, length)
        return window
