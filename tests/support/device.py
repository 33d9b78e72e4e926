"""The device for GPU tests: a GPU, or another device with which to try the tests themselves."""

from __future__ import annotations

import os

# Not a Draftloop setting: tests run without those.
DEVICE = os.environ.get("TEST_DEVICE", "cuda")


def is_available() -> bool:
    """Whether this machine has the device."""
    import torch

    return DEVICE == "cpu" or torch.cuda.is_available()
