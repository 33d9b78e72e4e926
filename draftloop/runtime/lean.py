"""Decoders of Llama's kind, run without transformers' Python code.

A decoding step of a small model spends most of its time in transformers' own Python (wrappers,
hooks, masks, shapes), more than a millisecond per layer. This module runs the same operations in
the same order on the same weights, with the three matrices before attention joined to one, and
likewise the two before the activation. Models of other kinds run through transformers' code.
On GPUs the layers run in steps with a fixed number of rows (`cuda_step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from draftloop import logs
from draftloop.runtime import rope
from draftloop.runtime.cpu_elementwise import Elementwise
from draftloop.runtime.cpu_linear import packed
from draftloop.runtime.cpu_stack import CpuStack, Frame, StackShape, stackable
from draftloop.runtime.forward import Batch
from draftloop.runtime.gpus import require_compiled_for
from draftloop.runtime.kv_cache import KVCache
from draftloop.runtime.quantization import Linear, QuantizedLinear, stacked
from draftloop.runtime.row_blocks import Heads, Multiplier, RowBlocks, multiplied, normed, parts_of
from draftloop.runtime.split import WHOLE, Parts
from draftloop.runtime.tree_attention import attend
from draftloop.runtime.trial import error_text

if TYPE_CHECKING:
    from draftloop.runtime.cuda_graph import Steps

log = logs.get(__name__)

KINDS = (
    LlamaForCausalLM, MistralForCausalLM, Phi3ForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,
)  # fmt: skip
# Those whose sliding window is in the configuration. Qwen has it in its layers; Llama has none,
# whatever its configuration contains.
WINDOW_IN_CONFIG = (MistralForCausalLM, Phi3ForCausalLM)
# RoPE types whose angles depend on the position only.
FIXED_ROPE = ("default", "linear", "llama3", "yarn", rope.FIXED)
# Matrices that are joined to one; Phi3 stores them joined.
BEFORE_ATTENTION, BEFORE_ACTIVATION = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
JOINED = {"qkv_proj": BEFORE_ATTENTION, "gate_up_proj": BEFORE_ACTIVATION}


def is_lean(model: PreTrainedModel) -> bool:
    """Whether `LeanDecoder` can run this model."""
    if type(model) not in KINDS:
        return False
    body, config = model.get_decoder(), model.config
    rotated = (config.rope_parameters or {}).get("partial_rotary_factor") or 1.0  # part of a head
    return (
        getattr(body.rotary_emb, "rope_type", None) in FIXED_ROPE
        and rotated == 1
        and all(
            type(module) in (nn.Linear, QuantizedLinear)
            for layer in body.layers
            for name, module in layer.named_modules()
            if name.endswith("_proj")
        )
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; `attention`: transformers' module without weights, for its index and scaling."""

    attention: Any
    window: int | None
    first_norm: Tensor
    before_attention: Multiplier
    head_norms: tuple[Tensor, Tensor] | None  # of queries and of keys, [dim]: Qwen3 has them
    after_attention: Multiplier
    second_norm: Tensor
    before_activation: Multiplier
    activation: nn.Module
    after_activation: Multiplier


class LeanDecoder:
    """Runs the decoder of `model` with its projections, which it removes: `model` cannot run then.

    `positions`: number of positions that may occur. `parts`: this rank's part of a split model.
    `compiled`: use torch.compile instead of our own kernels.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        positions: int,
        parts: Parts = WHOLE,
        *,
        compiled: bool = False,
    ) -> None:
        config, body = model.config, model.get_decoder()
        self._parts = parts
        queries, keys = int(config.num_attention_heads), _kv_heads(config)
        self._heads = Heads(queries // parts.ranks, keys // parts.ranks)
        self._compiled = compiled
        self._blocks = RowBlocks(compiled=compiled)
        self._epsilon = float(config.rms_norm_eps)
        self._embedding: Tensor = body.embed_tokens.weight
        self._norm: Tensor = body.norm.weight
        self._device = model.device
        all_positions = torch.arange(positions, device=self._device)[None]
        like = torch.zeros(1, dtype=model.dtype, device=self._device)
        # [positions, 1, dim]
        angles = (table[0][:, None] for table in body.rotary_emb(like, all_positions))
        self._cosines, self._sines = (table.contiguous() for table in angles)
        self._layers = [
            _convert_layer(layer, model, positions, compiled=compiled) for layer in body.layers
        ]
        self._head = model.lm_head if compiled else packed(model.lm_head)
        self._shape = StackShape(
            hidden=int(config.hidden_size),
            heads=self._heads.queries,
            kv_heads=self._heads.keys,
            dim=self._cosines.shape[-1],
            scale=float(self._layers[0].attention.scaling),
            epsilon=self._epsilon,
        )
        self._frame = Frame(self._embedding, self._cosines, self._sines, self._norm, self._head)
        # Runs the decoder in one call, on machines that have its kernel.
        self.stack: CpuStack | None = None
        if parts.ranks == 1 and stackable(self._layers, self._frame, self._shape):
            self.stack = CpuStack(self._layers, self._frame, self._shape)
        self.steps: Steps | None = None  # see `pad_steps`

    def pad_steps(self, cache: KVCache, max_nodes: int) -> None:
        """Makes forwards over `cache` run in padded steps from now on, on a GPU.

        `max_nodes`: maximum nodes of a draft. No effect if the decoder is split or compiled by
        torch. If the kernels are not available, that is logged and forwards run without.
        """
        if self._parts.ranks > 1 or self._compiled:
            return
        try:  # Triton comes only with torch for CUDA
            require_compiled_for(self._device)
            from draftloop.runtime.cuda_graph import steps_for
            from draftloop.runtime.cuda_step import PaddedStep

            self.steps = steps_for(
                lambda inputs: PaddedStep(self._layers, self._frame, self._shape, cache, inputs),
                max_nodes,
                self._device,
            )
        except Exception as error:  # compilers and drivers may raise anything
            log.warning("forwards run without padded steps", reason=error_text(error),
                        effect="they take longer, and rounding depends on the batch")  # fmt: skip

    def logits(self, batch: Batch, cache: KVCache, rows: Sequence[int]) -> Tensor:
        """Runs a batch; returns the logits of `rows`, float32 [rows, vocabulary]."""
        if self.stack is not None:
            return self.stack.run(batch, cache, rows)
        if self.steps is not None:
            return self.steps.run(batch, rows)
        return self._through_torch(batch, cache, rows)

    def _through_torch(self, batch: Batch, cache: KVCache, rows: Sequence[int]) -> Tensor:
        positions = torch.tensor(batch.positions, device=self._device)
        token_ids = torch.tensor(batch.token_ids, device=self._device)
        x = self._parts.embed(token_ids, self._embedding)
        delta = torch.zeros_like(x)
        angles = self._cosines[positions], self._sines[positions]
        for layer in self._layers:
            x, rotated, values = self._blocks.before_attention(
                x, delta, layer.first_norm, layer.before_attention, layer.head_norms, angles,
                self._heads, self._epsilon,
            )  # fmt: skip
            attended = self._attended(layer, rotated, values, batch, cache)
            delta = self._parts.all_reduce(multiplied(attended, layer.after_attention))
            x, delta = self._blocks.after_attention(
                x, delta, layer.second_norm, layer.before_activation, layer.activation,
                layer.after_activation, self._epsilon,
            )  # fmt: skip
            delta = self._parts.all_reduce(delta)
        x = x + delta
        if len(rows) < len(batch.token_ids):
            x = x[torch.tensor(rows, device=self._device)]
        logits = self._head(normed(x, self._norm, self._epsilon))
        return self._parts.all_gather(logits).float()

    def _attended(
        self, layer: Layer, rotated: Tensor, values: Tensor, batch: Batch, cache: KVCache
    ) -> Tensor:
        """Attention output, [rows, heads * dim].

        rotated: queries, then keys, [rows, heads + kv_heads, dim]. values: [rows, kv_heads, dim].
        """
        queries = self._heads.queries
        out, _ = attend(
            layer.attention,
            rotated[:, :queries].transpose(0, 1)[None],
            rotated[:, queries:].transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            None,
            layer.attention.scaling,
            draftloop_batch=batch,
            draftloop_cache=cache,
            sliding_window=layer.window,
        )
        return out.reshape(len(rotated), -1)


def _convert_layer(layer: Any, model: PreTrainedModel, positions: int, *, compiled: bool) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    ready = parts_of if compiled else packed
    activation = mlp.activation_fn if hasattr(mlp, "activation_fn") else mlp.act_fn
    window_source = model.config if isinstance(model, WINDOW_IN_CONFIG) else attention
    window = getattr(window_source, "sliding_window", None)
    return Layer(
        attention=attention,
        window=window if window is not None and window < positions else None,
        first_norm=layer.input_layernorm.weight,
        before_attention=ready(_joined(attention, "qkv_proj")),
        head_norms=_head_norms(attention),
        after_attention=ready(_detach(attention, "o_proj")),
        second_norm=layer.post_attention_layernorm.weight,
        before_activation=ready(_joined(mlp, "gate_up_proj")),
        activation=activation if compiled else Elementwise(activation),
        after_activation=ready(_detach(mlp, "down_proj")),
    )


def _detach(module: nn.Module, name: str) -> Linear:
    """Removes a layer from its module, so that no matrix is held twice."""
    layer = cast(Linear, getattr(module, name))
    delattr(module, name)
    return layer


def _head_norms(attention: Any) -> tuple[Tensor, Tensor] | None:
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    queries, keys = (None if norm is None else norm.weight for norm in norms)
    return None if queries is None or keys is None else (queries, keys)


def _joined(module: nn.Module, name: str) -> nn.Module:
    """The layer of this name, or its parts joined to one layer with concatenated outputs."""
    if hasattr(module, name):
        return _detach(module, name)
    return stacked([_detach(module, part) for part in JOINED[name]])


def _kv_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
