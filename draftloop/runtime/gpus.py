"""Checks for GPUs, and explains why one is missing."""

from __future__ import annotations

import torch

from draftloop.errors import StartupFailure
from draftloop.runtime.trial import error_text

# Minimum compute capability of NVIDIA GPUs for Triton. For an older one, it may abort the whole
# process instead of raising an error.
COMPILED_FOR = (8, 0)


def require_gpu(name: str) -> None:
    """Raises StartupFailure if this machine has no GPU of this name: cuda or cuda:N."""
    if not torch.cuda.is_available():
        raise StartupFailure(f"device: {name} is not available: {_missing_requirement()}")
    count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
    if index >= count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise StartupFailure(
            f"device: {name} is not available: this process sees {known} "
            f"(CUDA_VISIBLE_DEVICES decides)"
        )


def _missing_requirement() -> str:
    if not torch.backends.cuda.is_built():
        return (
            f"torch {torch.__version__} is a build without CUDA; install one with it, as PyTorch's "
            f"installation page says, or take cpu"
        )
    try:
        torch.cuda.init()
    except Exception as error:  # it names the cause: no driver, one that is too old, no device
        return error_text(error)
    return "torch cannot use it; take cpu"


def require_compiled_for(device: torch.device) -> None:
    """Raises RuntimeError if Triton does not compile for this GPU."""
    if torch.version.hip is not None:
        return
    found = torch.cuda.get_device_capability(device)
    if found < COMPILED_FOR:
        wanted, has = (".".join(map(str, version)) for version in (COMPILED_FOR, found))
        raise RuntimeError(f"Triton needs a GPU of compute capability {wanted}; this one has {has}")
