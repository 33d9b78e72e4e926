"""Cost inflation: decoder layers that cost time and memory traffic and change no output bit.

Their output projections are zero, so each adds exactly 0 to the residual stream. A cost-inflated
model stands for the cost of a larger one, never for its quality.
"""

from __future__ import annotations

import copy
import re

import torch
from torch import nn
from transformers import PreTrainedModel

from draftloop.errors import InvalidInput

# Layers of real models of about that size, so that the overhead per layer is right as well.
LAYERS_BY_SIZE = ((200e6, 12), (600e6, 24), (2e9, 24), (float("inf"), 32))
UNITS = {"M": 10**6, "B": 10**9}
INITIAL_DEVIATION = 0.02


def parse_size(text: str) -> int:
    """`300M` or `1B` as a number of parameters; 0 for the empty text."""
    if not text:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", text.upper())
    if not match:
        raise InvalidInput("inflate", "must be a size such as 300M or 1B", text)
    return int(float(match[1]) * UNITS[match[2]])


def count_parameters(model: nn.Module) -> int:
    """Parameters of the model, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def inflate(model: PreTrainedModel, size: int) -> None:
    """Appends silent layers until the model has about `size` parameters, in place.

    The layers are the model's own kind with a wider feed-forward block; a model that has no list
    of `model.layers` with `intermediate_size`, or is larger already, raises InvalidInput.
    """
    present = count_parameters(model)
    if size <= present:
        raise InvalidInput("inflate", f"must exceed the model's {present:,} parameters", size)
    body = model.get_decoder()
    layers = getattr(body, "layers", None)
    if layers is None or not hasattr(model.config, "intermediate_size"):
        raise InvalidInput("inflate", "needs decoder layers with an intermediate size", size)
    total = next(count for limit, count in LAYERS_BY_SIZE if size < limit)
    extra = max(1, total - len(layers))
    config = _wider_config(model, layers[-1], (size - present) // extra)
    for _ in range(extra):
        layers.append(_silent_layer(model, type(layers[-1]), config, len(layers)))
    _announce_depth(model, len(layers))


def _wider_config(model: PreTrainedModel, layer: nn.Module, parameters: int):  # type: ignore[no-untyped-def]
    config = copy.deepcopy(model.config)
    outside_mlp = count_parameters(layer) - count_parameters(layer.mlp)  # type: ignore[arg-type]
    width = (parameters - outside_mlp) // (3 * config.hidden_size)
    config.intermediate_size = max(64, width // 64 * 64)
    return config


def _silent_layer(model: PreTrainedModel, kind: type[nn.Module], config, index: int) -> nn.Module:  # type: ignore[no-untyped-def]
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        config.layer_types = [*layer_types, *[layer_types[-1]] * (index + 1 - len(layer_types))]
    layer = kind(config, index)
    generator = torch.Generator().manual_seed(index)
    for name, parameter in layer.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")) or name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            parameter.data.normal_(0, INITIAL_DEVIATION, generator=generator)
    layer.config = model.config  # type: ignore[assignment]
    for part in layer.modules():
        if hasattr(part, "config"):
            part.config = model.config
    return layer.to(model.dtype)


def _announce_depth(model: PreTrainedModel, depth: int) -> None:
    model.config.num_hidden_layers = depth
    layer_types = getattr(model.config, "layer_types", None)
    if layer_types:
        model.config.layer_types = [*layer_types, *[layer_types[-1]] * (depth - len(layer_types))]
