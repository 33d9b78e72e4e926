"""A rank's part of a split decoder, without transformers' wrappers."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import PreTrainedModel

from draftloop.runtime.loading import ModelOptions


class Parts(Protocol):
    """How the ranks' results are combined."""

    ranks: int

    def embed(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """Embeddings of token ids, [tokens, hidden], from this rank's rows of the table."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks."""

    def all_gather(self, logits: Tensor) -> Tensor:
        """All logits, [rows, vocabulary], from the columns that each rank has."""


class Whole:
    """A decoder that one process holds entirely."""

    ranks = 1

    def embed(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """Looks up the whole table."""
        return functional.embedding(token_ids, embedding)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns x, which is already the sum."""
        return x

    def all_gather(self, logits: Tensor) -> Tensor:
        """Returns the logits, which are complete."""
        return logits


class Split:
    """A decoder split by heads and columns, and `by_vocabulary` also by token ids."""

    def __init__(self, rank: int, ranks: int, *, by_vocabulary: tuple[bool, bool]) -> None:
        """`by_vocabulary`: whether the embedding, and the head, are split by token ids."""
        self.ranks = ranks
        self._rank = rank
        self._splits_embedding, self._splits_head = by_vocabulary

    def embed(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """Sums over the ranks: each looks up its own tokens, with zeros for the others."""
        if not self._splits_embedding:
            return functional.embedding(token_ids, embedding)
        local_ids = token_ids - self._rank * len(embedding)
        known = (local_ids >= 0) & (local_ids < len(embedding))
        found = functional.embedding(local_ids.where(known, 0), embedding)
        return self.all_reduce(found.where(known[:, None], 0))

    def all_reduce(self, x: Tensor) -> Tensor:
        """All-reduce in place, on every rank."""
        distributed.all_reduce(x)
        return x

    def all_gather(self, logits: Tensor) -> Tensor:
        """All-gather, on every rank; only the leader uses the result."""
        if not self._splits_head:
            return logits
        logits = logits.contiguous()
        parts = [torch.empty_like(logits) for _ in range(self.ranks)]
        distributed.all_gather(parts, logits)
        return torch.cat(parts, dim=-1)


WHOLE: Parts = Whole()


def _is_plain(model: PreTrainedModel, ranks: int) -> bool:
    """Whether all ranks have equally many columns and token ids, and unjoined projections."""
    config = model.config
    even = not any(width % ranks for width in (config.vocab_size, config.intermediate_size))
    return even and all(
        isinstance(getattr(layer.self_attn, name, None), nn.Linear)  # Phi3's are joined to one
        for layer in model.get_decoder().layers
        for name in ("q_proj", "k_proj", "v_proj")
    )


def split_model(model: PreTrainedModel, options: ModelOptions) -> Parts | None:
    """Turns this rank's parts into plain layers, in place; returns how to combine their outputs.

    The model itself cannot run any more afterwards. Returns None, and changes nothing, if
    transformers has split the model in a way that `LeanDecoder` cannot run.
    """
    rank, ranks = options.rank, options.tensor_parallel_size
    if not _is_plain(model, ranks):
        return None
    embedding, head = model.get_decoder().embed_tokens, model.lm_head
    by_vocabulary = (isinstance(embedding.weight, DTensor), isinstance(head.weight, DTensor))
    for module in model.modules():
        if isinstance(getattr(module, "weight", None), DTensor):
            _make_plain(module, adds_bias=rank == 0)
    return Split(rank, ranks, by_vocabulary=by_vocabulary)


def _make_plain(module: Any, *, adds_bias: bool) -> None:
    """Makes the local weights plain parameters; a bias that all would add stays on one rank."""
    vars(module).pop("forward", None)  # transformers' wrapper, around the one of the class
    by_outputs = any(placement.is_shard(0) for placement in module.weight.placements)
    by_inputs = isinstance(module, nn.Linear) and not by_outputs
    for name, parameter in list(module.named_parameters(recurse=False)):
        here = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        kept = name != "bias" or adds_bias or not by_inputs
        plain = nn.Parameter(here.detach(), requires_grad=False) if kept else None
        module.register_parameter(name, plain)
