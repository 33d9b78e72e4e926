"""The weights that a checkpoint's files contain, by their headers, without reading them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from draftloop.errors import StartupFailure
from draftloop.runtime import memory_left
from draftloop.runtime.memory_left import GIB

# Element types that pack several weights, and how many at least: two of 4 bits, four of 8.
PACKED = {"U8": 2, "I32": 4}


class Stored(NamedTuple):
    """A tensor in a file: element type, by safetensors' name, and shape."""

    kind: str
    shape: tuple[int, ...]

    @property
    def weights(self) -> int:
        """Minimum number of weights."""
        return prod(self.shape) * PACKED.get(self.kind, 1)


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads; the folder may hold others with the same weights."""
    index, whole = folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_NAME
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / name for name in sorted(named)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def stored_weights(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint by name; those of files that cannot be read are left out."""
    found: dict[str, Stored] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    part = opened.get_slice(name)
                    found[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
        except (OSError, SafetensorError):
            continue  # the error is reported when the file is actually loaded
    return found


def require_memory(folder: Path, dtype: torch.dtype, device: torch.device, ranks: int = 1) -> None:
    """Raises StartupFailure if a device's part of the weights exceeds its free memory.

    Otherwise the process would be killed without any message.
    """
    weights = sum(stored.weights for stored in stored_weights(folder).values())
    needed, free = weights * dtype.itemsize // ranks, memory_left.free_bytes(device)
    if needed > free:
        kind = str(dtype).removeprefix("torch.")
        each = f" on each of {ranks} devices" if ranks > 1 else ""
        raise StartupFailure(
            f"model: the weights of {folder} take at least {needed / GIB:,.1f} GiB in "
            f"{kind}{each}, and {device} has {free / GIB:,.1f} GiB free; serve a smaller model"
            f"{', or in bfloat16' if dtype.itemsize > 2 else ''}"
        )
