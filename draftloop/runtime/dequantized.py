"""Quantized checkpoints are dequantized to the served dtype when they are loaded.

Everything that runs a model here expects plain weights: kernels, padded steps, splits and our own
quantization. On GPUs, transformers would keep quantized weights and run kernels of its own, with
which a row's result depends on the batch.
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

# Methods (`quant_method`) that transformers can dequantize while loading, and the version from
# which on it does so completely.
READ = {"fp8": (5, 17), "mxfp8": (5, 17), "mxfp4": (5, 17), "compressed-tensors": (5, 23)}
VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
# Methods that it cannot dequantize, or only with a GPU; we do it ourselves beforehand.
PACKED = ("gptq", "awq")


def quantized_by(config: PretrainedConfig) -> str:
    """The `quant_method` of a checkpoint; "" if its weights are plain."""
    quantization = _quantization(config)
    return "" if quantization is None else str(quantization.get("quant_method"))


def prepare(
    config: PretrainedConfig, folder: Path, dtype: torch.dtype
) -> Mapping[str, Tensor] | None:
    """Changes `config` so that transformers loads plain weights.

    Returns the weights if transformers cannot dequantize them, else None. Raises StartupFailure if
    the method is not supported.
    """
    quantization = _quantization(config)
    if quantization is None:
        return None
    method = quantized_by(config)
    if method in PACKED:
        for part in _parts(config):
            if hasattr(part, "quantization_config"):
                del part.quantization_config
        return plain_weights(folder, quantization, dtype)
    _require_readable(method, folder)
    config.quantization_config = {**quantization, "dequantize": True}
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
    """Casts all weights to the network's dtype, except those that it needs in float32.

    Weights that the checkpoint did not quantize have kept their own dtype until then. Also restores
    the folder's generation_config.json.
    """
    if (folder / GENERATION).is_file():
        network.generation_config = GenerationConfig.from_pretrained(folder)
    kept = {*(network._keep_in_fp32_modules or ()), *(network._keep_in_fp32_modules_strict or ())}
    for name, weight in network.named_parameters():
        if not any(part in name for part in kept):
            weight.data = weight.data.to(network.config.dtype)


def _quantization(config: PretrainedConfig) -> dict[str, Any] | None:
    """The quantization_config of the configuration or of its text model; None if there is none."""
    configs = (getattr(part, "quantization_config", None) for part in _parts(config))
    return next((dict(found) for found in configs if found is not None), None)


def _parts(config: PretrainedConfig) -> tuple[PretrainedConfig, PretrainedConfig]:
    return config, config.get_text_config(decoder=True)


def _unscaled(folder: Path) -> list[str]:
    """Names of 8-bit weights without scales, which would be taken for plain numbers."""
    stored = stored_weights(folder)
    scaled = {_module(name) for name in stored if "scale" in name}
    return sorted(
        name
        for name, weight in stored.items()
        if weight.kind.startswith("F8_") and "scale" not in name and _module(name) not in scaled
    )


def _module(name: str) -> str:
    return name.rpartition(".")[0]
