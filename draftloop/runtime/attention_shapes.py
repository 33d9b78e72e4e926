"""Shapes of a model's keys and values, observed in a forward, as configs state them variously."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftloop.errors import StartupFailure
from draftloop.runtime.trial import trial, unsupported_model


@dataclass(slots=True)
class AttentionShapes:
    """Maxima over all layers: heads of keys and values, and their dimensions."""

    layers: set[int] = field(default_factory=set)
    kv_heads: int = 0
    head_dim: int = 0

    def observe(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Records a layer's shapes; returns zeros in the shape of its attention output.

        query, key, value: [1, heads or kv_heads, tokens, dimensions].
        """
        self.layers.add(layer)
        self.kv_heads = max(self.kv_heads, key.shape[1])
        self.head_dim = max(self.head_dim, query.shape[-1], value.shape[-1])
        _, heads, tokens, _ = query.shape
        return query.new_zeros(1, tokens, heads, value.shape[-1])


@torch.inference_mode()
def observed(network: PreTrainedModel, last_position: int) -> AttentionShapes:
    """The shapes of a model with our attention, by a forward of one token at `last_position`.

    Raises StartupFailure if the model cannot run with our attention, or counts positions itself.
    """
    shapes = AttentionShapes()
    position = torch.tensor([[last_position]], device=network.device)
    with trial(network.config.model_type):
        network(
            input_ids=torch.zeros_like(position),
            position_ids=position,
            use_cache=False,
            draftloop_batch=shapes,
        )
    if shapes.layers != set(range(len(shapes.layers))) or not shapes.layers:
        raise unsupported_model(network.config.model_type)
    if "position_ids" not in inspect.signature(network.forward).parameters:
        raise StartupFailure(
            f"model: {network.config.model_type} counts positions itself (its forward takes no "
            f"position_ids), but those in a draft are not consecutive; serve a model that takes "
            f"them, such as Llama, Qwen2 or Mistral"
        )
    return shapes
