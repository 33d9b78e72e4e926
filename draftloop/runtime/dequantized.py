"""Checkpoints whose weights are quantized: read back into the element type that is served.

All that runs a model here knows plain weights: kernels, padded steps, splits, our own rounding to
eight bits. Where a GPU is at hand transformers would keep such weights as they are and run kernels
of its own, whose rows depend on the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from draftloop.errors import StartupFailure
from draftloop.model_info import GENERATION
from draftloop.runtime.packed_weights import plain_weights
from draftloop.runtime.stored_weights import stored_weights

# What transformers can turn into plain weights while it reads them, by its `quant_method`, and the
# version from which on it leaves nothing else behind.
READ = {"fp8": (5, 17), "mxfp8": (5, 17), "mxfp4": (5, 17), "compressed-tensors": (5, 23)}
VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
# What it cannot, or not without a GPU, and we do before.
PACKED = ("gptq", "awq")


def quantized_by(config: PretrainedConfig) -> str:
    """The `quant_method` of a checkpoint; "" where its weights are plain."""
    said = _quantization(config)
    return "" if said is None else str(said.get("quant_method"))


def prepare(
    config: PretrainedConfig, folder: Path, dtype: torch.dtype
) -> Mapping[str, Tensor] | None:
    """Has `config` ask for plain weights, whatever the checkpoint has.

    The weights, where transformers cannot read them. Raises StartupFailure where nobody can.
    """
    said = _quantization(config)
    if said is None:
        return None
    method = quantized_by(config)
    if method in PACKED:
        for part in _parts(config):
            if hasattr(part, "quantization_config"):
                del part.quantization_config
        return plain_weights(folder, said, dtype)
    _require_readable(method, folder)
    config.quantization_config = {**said, "dequantize": True}
    return None


def _require_readable(method: str, folder: Path) -> None:
    beginning = f"model: {folder}: its weights are quantized by {method}"
    if method not in READ:
        raise StartupFailure(
            f"{beginning}, which is not read; serve a checkpoint in bfloat16, or one quantized by "
            f"one of {', '.join((*READ, *PACKED))}"
        )
    if READ[method] > VERSION:
        wanted = ".".join(map(str, READ[method]))
        raise StartupFailure(
            f"{beginning}, which transformers {transformers.__version__} does not read; "
            f"pip install 'transformers>={wanted}'"
        )
    if lacking := _unscaled(folder):
        raise StartupFailure(f"{beginning}; {len(lacking)} of them lack scales: {lacking[0]}")


def finish(network: PreTrainedModel, folder: Path) -> None:
    """Gives all weights the network's element type, but for those that it wants in float32, and the
    network its own generation_config.json.

    What a checkpoint did not quantize keeps its own type where others are dequantized.
    """
    if (folder / GENERATION).is_file():
        network.generation_config = GenerationConfig.from_pretrained(folder)
    kept = {*(network._keep_in_fp32_modules or ()), *(network._keep_in_fp32_modules_strict or ())}
    for name, weight in network.named_parameters():
        if not any(part in name for part in kept):
            weight.data = weight.data.to(network.config.dtype)


def _quantization(config: PretrainedConfig) -> dict[str, Any] | None:
    """What the configuration, or that of its text model, says of quantized weights."""
    said = (getattr(part, "quantization_config", None) for part in _parts(config))
    return next((dict(found) for found in said if found is not None), None)


def _parts(config: PretrainedConfig) -> tuple[PretrainedConfig, PretrainedConfig]:
    return config, config.get_text_config(decoder=True)


def _unscaled(folder: Path) -> list[str]:
    """Weights of eight bits without their scales: they would be taken for plain numbers."""
    stored = stored_weights(folder)
    scaled = {_module(name) for name in stored if "scale" in name}
    return sorted(
        name
        for name, weight in stored.items()
        if weight.kind.startswith("F8_") and "scale" not in name and _module(name) not in scaled
    )


def _module(name: str) -> str:
    return name.rpartition(".")[0]
