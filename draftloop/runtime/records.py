"""The arrays of a forward that compiled code lays out by itself (`prepared`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftloop.runtime.cutting import Cuts, Scratch

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STACK_ENTRY, CHOICE_ENTRY, LANES = 0, 1, 2  # of `Records.entries`


class Records(NamedTuple):
    """The arrays of one forward and of the choice of tokens after it.

    entries: addresses of the two kernels, and lanes per vector. stack, choice: the kernels'
    records. numbers: [3, rows]: token ids, positions, and the rows that tokens are chosen for.
    segment: see `cpu_stack_kernel`. window: address of `bias` and length of its rows. bias: buffer
    for [rows, stored], 0 where a row attends to a key, else -inf; flat. results: float64, flat,
    rows x (2 x count + 1), see `cpu_choice_kernel`. scores: float32 [rows, width]. noise: addresses
    of the noise rows, for each position after the committed text. times: [forwards, 3], see `Pass`.
    logits: float32 [rows, vocabulary]. cuts: the filters' parameters. scratch: the filters'
    buffers.
    """

    entries: Whole
    stack: Whole
    choice: Whole
    numbers: Whole
    segment: Whole
    window: Whole
    bias: npt.NDArray[np.float32]
    results: Floats
    scores: npt.NDArray[np.float32]
    noise: Whole
    times: Whole
    logits: npt.NDArray[np.float32]
    cuts: Cuts
    scratch: Scratch
