"""The arrays of a forward that compiled code lays out by itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftloop.runtime.cutting import Cuts, Scratch

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STACK_ENTRY, CHOICE_ENTRY, LANES = 0, 1, 2  # of `Records.entries`


class Records(NamedTuple):
    """What one forward needs, and the choice of tokens behind it.

    stack, choice: the kernels' records, by addresses and sizes; entries: the addresses of the two
    kernels, and lanes of a vector. numbers: [3, rows], tokens, positions and rows whose logits are
    chosen from. segment: see `cpu_stack_kernel`; window: the address of `bias` and its rows'
    length. bias: room for [rows, stored], 0 where a row sees a key, else -inf. said: float64 [rows,
    2 x count + 1], see `cpu_choice_kernel`. scores: float32 [rows, width]. noise: addresses of the
    noise of positions, from the one behind the committed text on. times: [forwards, 3], see `Pass`.
    logits: float32 [rows, vocabulary]; cuts: what is cut off of them; scratch: its room for a row.
    """

    entries: Whole
    stack: Whole
    choice: Whole
    numbers: Whole
    segment: Whole
    window: Whole
    bias: npt.NDArray[np.float32]
    said: Floats
    scores: npt.NDArray[np.float32]
    noise: Whole
    times: Whole
    logits: npt.NDArray[np.float32]
    cuts: Cuts
    scratch: Scratch
