"""Noise on CPUs: the hash and the two logarithms of `noise.py` in one call.

numpy takes some 20 ns for a value, in passes over all of them: 0.7 ms for eight positions of 4096
tokens, 20 ms for as many of 128k. The values are those of numpy's operations but for the last bit
of one in many millions, where two correct roundings of a logarithm differ.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftloop.runtime.cpu_linear import UNIT

if UNIT is not None:
    from draftloop.runtime import cpu_noise_kernel as kernel


def draw(vocabulary_size: int, keys: npt.NDArray[np.uint64]) -> Tensor:
    """float32 [keys, vocabulary]: the noise of positions by their keys; wants a UNIT."""
    assert UNIT is not None
    width = UNIT.padded(vocabulary_size)
    drawn = torch.empty(len(keys), width)
    kernel.compiled(UNIT)(
        kernel.CALL.pack(
            keys.ctypes.data, drawn.data_ptr(), len(keys), width, torch.get_num_threads()
        )
    )
    return drawn[:, :vocabulary_size]
