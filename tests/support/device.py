"""The device that the tests of GPUs run on: a GPU, or another one to try the tests themselves."""

from __future__ import annotations

import os

# Not one of our settings, of which tests know none.
DEVICE = os.environ.get("TEST_DEVICE", "cuda")


def is_there() -> bool:
    """Whether this machine has it."""
    import torch

    return DEVICE == "cpu" or torch.cuda.is_available()
