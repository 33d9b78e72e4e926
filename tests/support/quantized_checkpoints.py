"""Checkpoints of tiny models with quantized weights, in the formats of common compressors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, PretrainedConfig

from tests.support.families import EXPERTS, FAMILIES, WIDE
from tests.support.toy_model import save_model

Tensors = dict[str, Tensor]
# Returns the tensors that replace a weight in the file, and the dequantized weight.
Rounded = Callable[[str, Tensor], tuple[Tensors, Tensor]]

BLOCK = 16
GPT_OSS = GptOssConfig(**{**WIDE, "intermediate_size": 64}, **EXPERTS, head_dim=8)
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # the values of 4 bits, without sign


def to_fp8(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """Blocks of 16 x 16, each with its scale; DeepSeek V3 and Qwen3 have blocks of 128 x 128."""
    rows, columns = (size // BLOCK for size in weight.shape)
    blocks = weight.reshape(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3)) / 448
    rounded = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    restored = (rounded.float() * scales[:, None, :, None]).reshape(weight.shape)
    return {name: rounded.reshape(weight.shape), f"{name}_scale_inv": scales}, restored


def to_mxfp4(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """Random groups of 32 four-bit numbers with an exponent, as in gpt-oss; nothing is rounded."""
    experts, columns, rows = weight.shape
    random = torch.Generator().manual_seed(len(name) + rows)
    halves = torch.randint(0, 16, (experts, rows, columns // 32, 16, 2), generator=random)
    scales = torch.randint(118, 124, (experts, rows, columns // 32), generator=random)
    values = E2M1[halves % 8] * torch.where(halves >= 8, -1.0, 1.0)
    restored = values.flatten(3) * 2.0 ** (scales[..., None] - 127)
    packed = (halves[..., 0] + 16 * halves[..., 1]).to(torch.uint8)
    parts = {f"{name}_blocks": packed, f"{name}_scales": scales.to(torch.uint8)}
    return parts, restored.flatten(2).transpose(1, 2).contiguous()


def to_channels(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """Eight bits with a scale per row, the default of vLLM's own compressor."""
    scales = weight.abs().amax(1, keepdim=True) / 448
    rounded = (weight / scales).to(torch.float8_e4m3fn)
    return {name: rounded, f"{name}_scale": scales}, rounded.float() * scales


def to_groups(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """Four bits with a scale for every sixteen values of a row, packed eight to an integer."""
    groups = weight.reshape(len(weight), -1, BLOCK)
    scales = groups.abs().amax(2) / 7
    rounded = (groups / scales[..., None]).round().clamp(-8, 7)
    packed = _packed(rounded.reshape(weight.shape) + 8)
    parts = {
        name.replace("weight", "weight_packed"): packed,
        f"{name}_scale": scales,
        name.replace("weight", "weight_shape"): torch.tensor(weight.shape),
    }
    return parts, (rounded * scales[..., None]).reshape(weight.shape)


def to_gptq(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """Four bits, packed along the rows of [in, out]; rows belong to groups in random order."""
    rounded, zeros, scales, groups, restored = _grouped(
        weight, torch.randperm(weight.shape[1]) // BLOCK
    )
    layer = name.removesuffix("weight")
    return {
        f"{layer}qweight": _packed(rounded.T).T.contiguous(),
        f"{layer}qzeros": _packed(zeros - 1),
        f"{layer}scales": scales,
        f"{layer}g_idx": groups.to(torch.int32),
    }, restored


def to_awq(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    """Four bits, packed along the columns of [in, out], in a permuted order within an integer."""
    rounded, zeros, scales, _, restored = _grouped(weight, torch.arange(weight.shape[1]) // BLOCK)
    layer = name.removesuffix("weight")
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    packed, packed_zeros = (
        _packed(part.unflatten(1, (-1, 8))[..., order].flatten(1)) for part in (rounded, zeros)
    )
    return {
        f"{layer}qweight": packed,
        f"{layer}qzeros": packed_zeros,
        f"{layer}scales": scales,
    }, restored


def _grouped(weight: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """[in, out] in four bits, zero points and scales [groups, out], groups, dequantized weight."""
    rows, count = weight.T, int(groups.max()) + 1
    members = [rows[groups == group] for group in range(count)]
    least = torch.stack([some.amin(0) for some in members]).clamp(max=0)
    scales = (torch.stack([some.amax(0) for some in members]) - least) / 15
    zeros = (-least / scales).round().clamp(1, 15).to(torch.int32)
    rounded = (rows / scales[groups] + zeros[groups]).round().clamp(0, 15).to(torch.int32)
    restored = (rounded - zeros[groups]) * scales[groups]
    return rounded, zeros, scales, groups, restored.T.contiguous()


def _packed(values: Tensor) -> Tensor:
    """Packs numbers [rows, n] from 0 to 15 into int32 [rows, n / 8], the first one lowest."""
    shifts = torch.arange(0, 32, 4)
    return torch.sum(values.unflatten(1, (-1, 8)).long() << shifts, 2).to(torch.int32)


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """A configuration of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


@dataclass(frozen=True)
class Kind:
    """How weights whose names end with `names` are quantized, and the configuration for it."""

    how: Rounded
    said: dict[str, Any]
    names: tuple[str, ...] = ("_proj.weight",)
    config: PretrainedConfig | None = None


FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
    "activation_scheme": "dynamic",
    "modules_to_not_convert": ["lm_head"],
}
GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": True}
KINDS = {
    "fp8": Kind(to_fp8, FP8),
    "mxfp4": Kind(to_mxfp4, {"quant_method": "mxfp4"}, ("gate_up_proj", "down_proj"), GPT_OSS),
    "gptq": Kind(to_gptq, GPTQ),
    "awq": Kind(to_awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "fp8, experts": Kind(to_fp8, FP8, config=FAMILIES["qwen2_moe"]),
    "gptq, experts": Kind(
        to_gptq, GPTQ, (".w1.weight", ".w2.weight", ".w3.weight"), FAMILIES["mixtral"]
    ),
    "fp8 by channels": Kind(
        to_channels, compressed("float-quantized", num_bits=8, type="float", strategy="channel")
    ),
    "int4 by groups": Kind(
        to_groups,
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=BLOCK),
    ),
}


def save_quantized(folder: Path, kind: Kind) -> Tensors:
    """Writes such a checkpoint; returns the dequantized weights."""
    file, config = save_model(folder, kind.config) / "model.safetensors", folder / "config.json"
    saved, expected = Tensors(), Tensors()
    for name, weight in load_file(file).items():
        if name.endswith(kind.names):
            parts, expected[name] = kind.how(name, weight)
            saved |= parts
        else:
            saved[name] = expected[name] = weight
    save_file(saved, file, metadata={"format": "pt"})
    updated = {**json.loads(config.read_text()), "quantization_config": kind.said}
    config.write_text(json.dumps(updated))
    return expected


def save_plain(folder: Path, kind: Kind, weights: Tensors) -> Path:
    """Writes a model of the same kind with these weights; returns the folder."""
    save_file(weights, save_model(folder, kind.config) / "model.safetensors", {"format": "pt"})
    return folder
