"""Windows on the packed token stream: shuffled, without repetition within a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK = 2048  # tokens that stay together whatever the window length, which divides it
GROUP_BLOCKS = 128  # blocks from all over the stream whose windows are shuffled together


def mixed(
    text: npt.NDArray[np.int16], others: Sequence[tuple[npt.NDArray[np.int16], float]], seed: int
) -> npt.NDArray[np.int16]:
    """One stream in which each of `others` has its share (0 to 1) and `text` what is left.

    As long as the one that runs out first allows; blocks are drawn from all over each. Windows
    are drawn from all over the stream, so the order in it does not matter. Raises ValueError
    unless every share is above 0 and all of them together are at most 1.
    """
    shares = [share for _, share in others]
    left = round(1 - sum(shares), 9)  # 0.7 and 0.2 and 0.1 leave nothing
    if min(shares) <= 0 or left < 0:
        raise ValueError(f"shares must be above 0 and together at most 1, got {shares}")
    parts = [*others, (text, left)] if left else others
    draw = np.random.default_rng(seed)
    total = min(len(stream) / share for stream, share in parts) / BLOCK
    chosen = []
    for stream, share in parts:
        whole = stream[: len(stream) // BLOCK * BLOCK].reshape(-1, BLOCK)
        blocks = draw.permutation(len(whole))[: round(total * share)]
        chosen.append(whole[np.sort(blocks)].reshape(-1))
    return np.concatenate(chosen)


@dataclass(frozen=True, slots=True)
class Windows:
    """Window number n is a pure function of (stream, seed, length, n), so runs resume exactly.

    Neighbouring windows come from different files: a group that stayed within some thirty files
    made the loss fall inside each group and jump at the next.
    """

    stream: npt.NDArray[np.int16]
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
        blocks = np.random.default_rng((self.seed, passed)).permutation(self.groups * GROUP_BLOCKS)
        inner = np.random.default_rng((self.seed, passed, place))
        block, part = divmod(int(inner.permutation(per_block * GROUP_BLOCKS)[member]), per_block)
        return int(blocks[place * GROUP_BLOCKS + block]) * BLOCK + part * length

    def batch(self, first: int, count: int, length: int) -> Tensor:
        """Tokens [count, length + 1]: inputs without the last column, targets without the first.

        Raises ValueError if the stream is shorter than one group of windows.
        """
        if not self.groups:
            least = BLOCK * GROUP_BLOCKS
            raise ValueError(f"a stream needs more than {least} tokens, not {len(self.stream)}")
        starts = (self.start(number, length) for number in range(first, first + count))
        rows = [self.stream[start : start + length + 1] for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))
