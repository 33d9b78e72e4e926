"""Windows on the packed token stream: shuffled, without repetition within a pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

GROUP = 2**18  # tokens that are shuffled together; every window length divides it


@dataclass(frozen=True, slots=True)
class Windows:
    """Window number n is a pure function of (stream, seed, length, n), so runs resume exactly."""

    stream: npt.NDArray[np.int16]
    seed: int

    def start(self, number: int, length: int) -> int:
        """Where window `number` begins in the stream."""
        per_group = GROUP // length
        group, member = divmod(number, per_group)
        groups = max(1, (len(self.stream) - 1) // GROUP)
        pass_number, place = divmod(group, groups)
        order = np.random.default_rng((self.seed, pass_number)).permutation(groups)
        inner = np.random.default_rng((self.seed, pass_number, place)).permutation(per_group)
        return int(order[place]) * GROUP + int(inner[member]) * length

    def batch(self, first: int, count: int, length: int) -> Tensor:
        """Tokens [count, length + 1]: inputs without the last column, targets without the first.

        Raises ValueError if the stream is shorter than one group of windows.
        """
        if len(self.stream) <= GROUP:
            raise ValueError(f"a stream needs more than {GROUP} tokens, not {len(self.stream)}")
        starts = (self.start(number, length) for number in range(first, first + count))
        rows = [self.stream[start : start + length + 1] for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))
