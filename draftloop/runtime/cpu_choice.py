"""Sampling on CPUs: temperature, noise, best tokens and their shares in one call.

In torch this takes about nine operations. Each is cheap, but after a forward it starts with cold
caches: 0.2 to 0.3 ms for a row of 4096 tokens, in every forward of the draft model. The scores are
bit for bit those of torch's operations, so both choose the same tokens.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftloop.runtime.choices import Choices
from draftloop.runtime.cpu_linear import UNIT

if UNIT is not None:
    from draftloop.runtime import cpu_choice_kernel as kernel
    from draftloop.runtime.llvm import address_of


def fits(logits: Tensor) -> bool:
    """Whether the kernel can process these logits, [rows, vocabulary]."""
    return (
        UNIT is not None
        and logits.is_cpu
        and logits.dtype is torch.float32
        and logits.stride(1) == 1
    )


def choose(logits: Tensor, noise: Sequence[Tensor], temperature: float, count: int) -> Choices:
    """The best `count` tokens of every row by logit / temperature + noise.

    logits: [rows, vocabulary]; noise: float32 [vocabulary] for every row, or empty for none.
    """
    assert UNIT is not None, "fits() comes first"
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    scores = torch.empty(rows, UNIT.padded(vocabulary))
    results = _run_kernel(logits, scores, noise, temperature, count, kernel.WEIGHED)
    return Choices(
        token_ids=results[:, :count].astype(np.int64).tolist(),
        scores=scores if scores.shape[1] == vocabulary else scores[:, :vocabulary],
        bests=results[:, count:-1].tolist(),
        masses=results[:, -1].tolist(),
    )


def best(
    logits: Tensor, noise: Sequence[Tensor], temperature: float, count: int
) -> list[list[int]]:
    """The tokens of `choose` only: [rows, count]."""
    assert UNIT is not None, "fits() comes first"
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    scores = _scratch(rows, UNIT.padded(vocabulary))
    mode = kernel.CHOSEN if noise or temperature != 1 else kernel.RANKED
    results = _run_kernel(logits, scores, noise, temperature, count, mode)
    token_ids: list[list[int]] = results[:, :count].astype(np.int64).tolist()
    return token_ids


def _run_kernel(
    logits: Tensor,
    scores: Tensor,
    noise: Sequence[Tensor],
    temperature: float,
    count: int,
    mode: int,
) -> npt.NDArray[np.float64]:
    """Calls the kernel; returns its results for every row, and fills in `scores`."""
    assert UNIT is not None
    rows, vocabulary = logits.shape
    results = np.empty((rows, 2 * count + 1))
    noise = noise or [zero_noise(vocabulary)] * rows
    kernel.compiled(UNIT)(
        call(logits, scores, results.ctypes.data, noise, temperature, count, mode)
    )
    return results


class _Scratch(threading.local):
    """A reusable buffer for scores that are not returned: its memory is already mapped."""

    scores = torch.empty(0)


_SCRATCH = _Scratch()


def _scratch(rows: int, width: int) -> Tensor:
    if _SCRATCH.scores.numel() < rows * width:
        _SCRATCH.scores = torch.empty(rows * width)
    return _SCRATCH.scores[: rows * width].view(rows, width)


def call(
    logits: Tensor, scores: Tensor, results_address: int, noise: Sequence[Tensor],
    temperature: float, count: int, mode: int,
) -> bytes:  # fmt: skip
    """The kernel's record for rows of `logits`, whose results it writes to `results_address`."""
    rows, vocabulary = logits.shape
    addresses = (drawn.data_ptr() for drawn in noise)
    return kernel.CALL.pack(
        logits.data_ptr(), scores.data_ptr(), results_address, rows, logits.stride(0), vocabulary,
        scores.shape[1], count, mode, temperature, torch.get_num_threads(),
    ) + struct.pack(f"{rows}q", *addresses)  # fmt: skip


def entry() -> int:
    """The kernel's address."""
    assert UNIT is not None
    return address_of(kernel.compiled(UNIT))


@functools.cache
def zero_noise(vocabulary: int) -> Tensor:
    """Noise of zeros."""
    return torch.zeros(vocabulary)
