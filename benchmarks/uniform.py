"""A cost-inflated target whose layers all have one width, for other servers to load.

`draftloop.runtime.inflate` appends layers that are wider than the model's own, which no checkpoint
format describes. Here the model's own layers are widened as well, with zeros, so that an ordinary
Llama configuration holds them all.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from draftloop.errors import InvalidInput
from draftloop.runtime.inflate import LAYERS_BY_SIZE, OUTPUT_PROJECTIONS, count_parameters

WIDTH_STEP = 256  # widths of real models are multiples of it
SEED = 0


def uniform(model: LlamaForCausalLM, size: int) -> LlamaForCausalLM:
    """A model of about `size` parameters with the outputs of `model`, in its element type.

    The layers after the model's own add exactly 0 to the residual stream, and so do the columns by
    which its own ones are widened; sums over wider rows may be rounded differently. Raises
    InvalidInput if `size` is too small for that.
    """
    config = copy.deepcopy(model.config)
    depth = next(count for limit, count in LAYERS_BY_SIZE if size < limit)
    config.num_hidden_layers = max(depth, model.config.num_hidden_layers)
    config.intermediate_size = _width(model, size, config.num_hidden_layers)
    if config.intermediate_size < model.config.intermediate_size:
        rule = f"must exceed the model's {count_parameters(model):,} parameters"
        raise InvalidInput("inflate", rule, size)
    return _filled(config, model)


def _width(model: LlamaForCausalLM, size: int, depth: int) -> int:
    """The feed-forward width at which `depth` layers and the embeddings have `size` parameters."""
    layer = model.model.layers[0]
    outside_mlp = count_parameters(layer) - count_parameters(layer.mlp)
    outside = count_parameters(model.get_input_embeddings()) + depth * outside_mlp
    hidden: int = model.config.hidden_size
    width = (size - outside) // (3 * depth * hidden)
    return width // WIDTH_STEP * WIDTH_STEP


def _filled(config: LlamaConfig, model: LlamaForCausalLM) -> LlamaForCausalLM:
    torch.manual_seed(SEED)  # the initial weights of the layers after the model's own
    larger = LlamaForCausalLM(config).to(model.dtype)
    own = dict(model.named_parameters())
    for name, parameter in larger.named_parameters():
        source = own.get(name)
        if source is None:
            if name.removesuffix(".weight").endswith(OUTPUT_PROJECTIONS):
                nn.init.zeros_(parameter)
            continue
        nn.init.zeros_(parameter)
        with torch.no_grad():
            parameter[tuple(slice(length) for length in source.shape)] = source
    return larger
