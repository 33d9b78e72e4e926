"""Tensors in huge pages do not overlap and stay valid while in use."""

from __future__ import annotations

import gc

import pytest
import torch

from draftloop.runtime.huge_pages import CHUNK_BYTES, LINE_BYTES, HugePages

SHAPES = [(3, 5), (1,), (7, 2, 4), (0, 4), (64, 96)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_do_not_overlap_and_are_aligned(dtype: torch.dtype) -> None:
    pages = HugePages()
    tensors = [pages.empty(shape, dtype) for shape in SHAPES]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    for number, (tensor, shape) in enumerate(zip(tensors, SHAPES, strict=True)):
        assert tuple(tensor.shape) == shape and tensor.dtype is dtype and tensor.is_contiguous()
        assert tensor.numel() == 0 or tensor.data_ptr() % LINE_BYTES == 0
        assert (tensor == number).all()


def test_full_chunk_is_replaced_and_lives_as_long_as_its_tensors() -> None:
    pages = HugePages()
    first = pages.empty((CHUNK_BYTES // 4 - 16,), torch.float32)
    first[-1] = 1.0
    larger = pages.empty((CHUNK_BYTES // 4 + 1,), torch.float32)
    larger[-1] = 2.0
    del pages
    gc.collect()
    assert first[-1] == 1.0 and larger[-1] == 2.0
