"""Unpacks weights that GPTQ (arXiv 2210.17323) and AWQ (2306.00978) pack into 32-bit integers.

There is a zero point and a scale for every group of a column's rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from draftloop.errors import StartupFailure
from draftloop.runtime.stored_weights import weight_files

INTEGER = 32
# Column of each of the eight parts of an integer, lowest bits first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PACKED = "qweight"
NEEDED = (PACKED, "qzeros", "scales")
PARTS = (*NEEDED, "g_idx")  # g_idx: the group of every row

# Maps a layer's parts by name to its weight [out, in].
Unpack = Callable[[Mapping[str, Tensor]], Tensor]


def plain_weights(folder: Path, config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """All weights of a checkpoint by name, with the packed ones dequantized to `dtype`.

    `config` is the configuration's `quantization_config`. Raises StartupFailure if the packing is
    not supported or a layer lacks a part.
    """
    unpack = _unpacker_of(folder, config)
    weights: dict[str, Tensor] = {}
    with contextlib.ExitStack() as files:
        stored: dict[str, Any] = {}
        for file in weight_files(folder):
            opened = files.enter_context(safe_open(file, framework="pt"))
            stored |= dict.fromkeys(opened.keys(), opened)
        for name, opened in stored.items():
            layer, _, part = name.rpartition(".")
            if f"{layer}.{PACKED}" not in stored or part not in PARTS:
                weights[name] = _cast(opened.get_tensor(name), dtype)
            elif part == PACKED:
                names = {part: f"{layer}.{part}" for part in PARTS}
                if lacking := [names[part] for part in NEEDED if names[part] not in stored]:
                    raise StartupFailure(f"model: {folder} lacks weights: {', '.join(lacking)}")
                found = {p: stored[n].get_tensor(n) for p, n in names.items() if n in stored}
                weights[f"{layer}.weight"] = unpack(found).to(dtype)
    return weights


def _cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype) if weight.is_floating_point() else weight


def _unpacker_of(folder: Path, config: Mapping[str, Any]) -> Unpack:
    """The function that unpacks this format. Raises StartupFailure if it is not supported."""
    bits = config.get("bits")
    if config.get("quant_method") == "awq":
        version = str(config.get("version", "gemm")).lower()
        if (version, bits) != ("gemm", 4):
            raise _unknown(folder, "version gemm with 4 bits", f"{version} with {bits}")
        return _unpack_awq
    if bits not in (2, 4, 8):
        raise _unknown(folder, "2, 4 or 8 bits", bits)
    # the first version stores zero points minus one
    less = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    return lambda parts: _unpack_gptq(parts, bits, less)


def _unknown(folder: Path, rule: str, found: object) -> StartupFailure:
    return StartupFailure(f"model: {folder}: quantization_config must say {rule}; got {found}")


def _unpack_gptq(parts: Mapping[str, Tensor], bits: int, less: int) -> Tensor:
    """Integers pack rows of a column; those of zero points pack columns of a group."""
    rows = unpacked(parts[PACKED].T, bits).T
    return _plain(rows, unpacked(parts["qzeros"], bits) + less, parts)


def _unpack_awq(parts: Mapping[str, Tensor]) -> Tensor:
    """Integers pack columns of a row, and for zero points columns of a group."""
    eight = len(AWQ_ORDER)
    order = torch.tensor(AWQ_ORDER).argsort()
    rows, zeros = (
        unpacked(parts[name], INTEGER // eight).unflatten(1, (-1, eight))[..., order].flatten(1)
        for name in (PACKED, "qzeros")
    )
    return _plain(rows, zeros, parts)


def _plain(rows: Tensor, zeros: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
    """The weight, float32 [out, in], from integers [in, out] and zero points [groups, out]."""
    groups = parts.get("g_idx")
    if groups is None:
        groups = torch.arange(len(rows)) // (len(rows) // len(zeros))
    groups = groups.long()
    weight: Tensor = (rows - zeros[groups]) * parts["scales"].float()[groups]
    return weight.T.contiguous()


def unpacked(integers: Tensor, bits: int) -> Tensor:
    """Unpacks int32 [rows, n] to int32 [rows, n x 32 / bits], lowest bits first."""
    shifts = torch.arange(0, INTEGER, bits, dtype=torch.int32)
    parts: Tensor = integers[..., None] >> shifts & (1 << bits) - 1
    return parts.flatten(1)
