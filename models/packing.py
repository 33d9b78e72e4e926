"""Windows on the packed token stream: shuffled, without repetition within a pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK = 2048  # tokens that stay together whatever the window length, which divides it
GROUP_BLOCKS = 128  # blocks from all over the stream whose windows are shuffled together


def mixed(
    text: npt.NDArray[np.int16], other: npt.NDArray[np.int16], share: float, seed: int
) -> npt.NDArray[np.int16]:
    """All of `other`, and so many blocks from all over `text` that `other` is `share` (0 to 1).

    Windows are drawn from all over the stream, so the order of the two does not matter.
    """
    whole = text[: len(text) // BLOCK * BLOCK].reshape(-1, BLOCK)
    wanted = round(len(other) / BLOCK * (1 / share - 1))
    chosen = np.random.default_rng(seed).permutation(len(whole))[:wanted]
    return np.concatenate([other, whole[np.sort(chosen)].reshape(-1)])


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
