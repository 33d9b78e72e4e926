"""The choice of tokens on CPUs: temperature, noise, best tokens and their shares in one call.

Some nine operations of torch, each cheap, but after a forward pass each begins with cold caches:
0.2 to 0.3 ms for a row of 4096 tokens, in every forward of the draft model. The scores have the
bits of torch's operations, so both choose the same tokens.
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
    """Whether the kernel takes these logits, [rows, vocabulary]."""
    return (
        UNIT is not None
        and logits.is_cpu
        and logits.dtype is torch.float32
        and logits.stride(1) == 1
    )


def choose(logits: Tensor, noise: Sequence[Tensor], temperature: float, count: int) -> Choices:
    """The best `count` tokens of every row by logit / temperature + noise.

    logits: [rows, vocabulary]; noise: for every row float32 [vocabulary], or nothing at all.
    """
    assert UNIT is not None, "fits() comes first"
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    scores = torch.empty(rows, UNIT.padded(vocabulary))
    told = _told(logits, scores, noise, temperature, count, kernel.WEIGHED)
    return Choices(
        token_ids=told[:, :count].astype(np.int64).tolist(),
        scores=scores if scores.shape[1] == vocabulary else scores[:, :vocabulary],
        bests=told[:, count:-1].tolist(),
        masses=told[:, -1].tolist(),
    )


def best(
    logits: Tensor, noise: Sequence[Tensor], temperature: float, count: int
) -> list[list[int]]:
    """`choose` for who wants the tokens alone: [rows, count]."""
    assert UNIT is not None, "fits() comes first"
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    scores = _scratch(rows, UNIT.padded(vocabulary))
    asked = kernel.CHOSEN if noise or temperature != 1 else kernel.RANKED
    told = _told(logits, scores, noise, temperature, count, asked)
    token_ids: list[list[int]] = told[:, :count].astype(np.int64).tolist()
    return token_ids


def _told(
    logits: Tensor,
    scores: Tensor,
    noise: Sequence[Tensor],
    temperature: float,
    count: int,
    asked: int,
) -> npt.NDArray[np.float64]:
    """What the kernel tells of the rows; fills in their scores."""
    assert UNIT is not None
    rows, vocabulary = logits.shape
    told = np.empty((rows, 2 * count + 1))
    noise = noise or [silence(vocabulary)] * rows
    kernel.compiled(UNIT)(call(logits, scores, told.ctypes.data, noise, temperature, count, asked))
    return told


class _Scratch(threading.local):
    """Scores that nobody asks for again, where the last ones stood: memory that is mapped."""

    scores = torch.empty(0)


_SCRATCH = _Scratch()


def _scratch(rows: int, width: int) -> Tensor:
    if _SCRATCH.scores.numel() < rows * width:
        _SCRATCH.scores = torch.empty(rows * width)
    return _SCRATCH.scores[: rows * width].view(rows, width)


def call(
    logits: Tensor, scores: Tensor, told: int, noise: Sequence[Tensor], temperature: float,
    count: int, asked: int,
) -> bytes:  # fmt: skip
    """The kernel's record for rows of `logits`; `told` is an address, of what it tells of them."""
    rows, vocabulary = logits.shape
    addresses = (drawn.data_ptr() for drawn in noise)
    return kernel.CALL.pack(
        logits.data_ptr(), scores.data_ptr(), told, rows, logits.stride(0), vocabulary,
        scores.shape[1], count, asked, temperature, torch.get_num_threads(),
    ) + struct.pack(f"{rows}q", *addresses)  # fmt: skip


def entry() -> int:
    """The kernel's address."""
    assert UNIT is not None
    return address_of(kernel.compiled(UNIT))


@functools.cache
def silence(vocabulary: int) -> Tensor:
    """Noise that changes nothing."""
    return torch.zeros(vocabulary)
