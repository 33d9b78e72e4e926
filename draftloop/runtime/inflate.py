"""Cost inflation: decoder layers that cost time and memory traffic and change no output bit.

Their output projections are zero, so each adds exactly 0 to the residual stream. A cost-inflated
model stands for the cost of a larger one, never for its quality.
"""

from __future__ import annotations

import copy
import re

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from draftloop.errors import InvalidInput
from draftloop.runtime.trial import UNEXPECTED_ERRORS

# Layers of real models of about that size, so that the overhead per layer is realistic too.
LAYERS_BY_SIZE = ((200e6, 12), (600e6, 24), (2e9, 24), (float("inf"), 32))
UNITS = {"M": 10**6, "B": 10**9}
INITIAL_DEVIATION = 0.02
# These have an entry for every layer.
LISTS = ("layer_types", "no_rope_layers", "mlp_layer_types", "layer_rope_theta")
# All that a layer adds to the residual stream comes from these two.
OUTPUT_PROJECTIONS = ("self_attn.o_proj", "mlp.down_proj")


def parse_size(text: str) -> int:
    """`300M` or `1B` as a number of parameters; 0 for the empty text."""
    if not text:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", text.upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if not size:
        raise InvalidInput("inflate", "must be a size such as 300M or 1B", text)
    return size


def count_parameters(model: nn.Module) -> int:
    """Parameters of the model, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def inflate(model: PreTrainedModel, size: int) -> None:
    """Appends silent layers until the model has about `size` parameters, in place.

    The layers are of the model's own kind, with another feed-forward width. Raises InvalidInput for
    a model without a list of `layers` and an `intermediate_size`, or one that is already larger.
    """
    present = count_parameters(model)
    if size <= present:
        raise InvalidInput("inflate", f"must exceed the model's {present:,} parameters", size)
    body = model.get_decoder()
    layers = getattr(body, "layers", None)
    if layers is None or not _can_be_silenced(layers[-1], model.config):
        rule = "needs a model whose layers end in o_proj and down_proj, with intermediate_size"
        raise InvalidInput("inflate", rule, type(model).__name__)
    total = next(count for limit, count in LAYERS_BY_SIZE if size < limit)
    extra = max(1, total - len(layers))
    config = _wider_config(model.config, layers[-1], (size - present) // extra)
    try:
        for _ in range(extra):
            layers.append(_silent_layer(model, type(layers[-1]), config, len(layers)))
    except UNEXPECTED_ERRORS as error:  # Gemma 4 prepares what its layers share by their number
        rule = "needs a model whose layers do not depend on how many there are"
        raise InvalidInput("inflate", rule, type(model).__name__) from error
    _set_depth(model, len(layers))


def _can_be_silenced(layer: nn.Module, config: PretrainedConfig) -> bool:
    names = [name for name, _ in layer.named_parameters()]
    return hasattr(config, "intermediate_size") and all(
        f"{projection}.weight" in names for projection in OUTPUT_PROJECTIONS
    )


def _wider_config(config: PretrainedConfig, layer: nn.Module, parameters: int) -> PretrainedConfig:
    config = copy.deepcopy(config)
    outside_mlp = count_parameters(layer) - count_parameters(layer.get_submodule("mlp"))
    width = (parameters - outside_mlp) // (3 * config.hidden_size)
    config.intermediate_size = max(64, width // 64 * 64)
    return config


def _silent_layer(
    model: PreTrainedModel, kind: type[nn.Module], config: PretrainedConfig, index: int
) -> nn.Module:
    _extend_layer_lists(config, index + 1)
    with model.device:  # a billion random numbers take a CPU's core half a minute
        layer = kind(config, index)
    generator = torch.Generator(model.device).manual_seed(index)
    for name, parameter in layer.named_parameters():
        if name.removesuffix(".weight") in OUTPUT_PROJECTIONS or name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            parameter.data.normal_(0, INITIAL_DEVIATION, generator=generator)
    for part in layer.modules():
        if hasattr(part, "config"):
            part.config = model.config  # the attention implementation is read from it later
    return layer.to(model.dtype)


def _set_depth(model: PreTrainedModel, depth: int) -> None:
    _extend_layer_lists(model.config, depth)
    model.config.num_hidden_layers = depth


def _extend_layer_lists(config: PretrainedConfig, depth: int) -> None:
    """Extends a configuration's entries per layer (LISTS) to `depth` by repeating the last one."""
    for name in LISTS:
        if values := getattr(config, name, None):
            setattr(config, name, [*values, *values[-1:] * (depth - len(values))])
