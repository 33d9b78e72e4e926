"""A rank's part of a split decoder, without the wrappers that transformers puts around it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import PreTrainedModel

from draftloop.runtime.loading import ModelOptions


class Parts(Protocol):
    """How what the ranks compute becomes one."""

    ranks: int

    def embedded(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """[tokens, hidden] of token ids, from this rank's rows of the table."""

    def summed(self, x: Tensor) -> Tensor:
        """The sum of what all ranks have."""

    def gathered(self, logits: Tensor) -> Tensor:
        """[rows, vocabulary], from the columns that each rank has."""


class Whole:
    """Of a decoder that one process holds."""

    ranks = 1

    def embedded(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """The table is whole."""
        return functional.embedding(token_ids, embedding)

    def summed(self, x: Tensor) -> Tensor:
        """It is the sum."""
        return x

    def gathered(self, logits: Tensor) -> Tensor:
        """They are all there."""
        return logits


class Split:
    """Of a decoder that is split by heads, columns and, where `by_vocabulary`, token ids."""

    def __init__(self, rank: int, ranks: int, *, by_vocabulary: tuple[bool, bool]) -> None:
        """`by_vocabulary`: the embedding, the head."""
        self.ranks = ranks
        self._rank = rank
        self._splits_embedding, self._splits_head = by_vocabulary

    def embedded(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """Every rank adds those that it knows, and zeros for the others."""
        if not self._splits_embedding:
            return functional.embedding(token_ids, embedding)
        mine = token_ids - self._rank * len(embedding)
        known = (mine >= 0) & (mine < len(embedding))
        found = functional.embedding(mine.where(known, 0), embedding)
        return self.summed(found.where(known[:, None], 0))

    def summed(self, x: Tensor) -> Tensor:
        """In place, on every rank."""
        distributed.all_reduce(x)
        return x

    def gathered(self, logits: Tensor) -> Tensor:
        """On every rank: the others throw them away."""
        if not self._splits_head:
            return logits
        logits = logits.contiguous()
        parts = [torch.empty_like(logits) for _ in range(self.ranks)]
        distributed.all_gather(parts, logits)
        return torch.cat(parts, dim=-1)


WHOLE: Parts = Whole()


def _is_plain(model: PreTrainedModel, ranks: int) -> bool:
    """Whether each rank has as many whole heads, columns and token ids as every other."""
    config = model.config
    even = not any(width % ranks for width in (config.vocab_size, config.intermediate_size))
    return even and all(
        isinstance(getattr(layer.self_attn, name, None), nn.Linear)  # not joined to one, as Phi3's
        for layer in model.get_decoder().layers
        for name in ("q_proj", "k_proj", "v_proj")
    )


def taken_apart(model: PreTrainedModel, options: ModelOptions) -> Parts | None:
    """Makes plain layers of this rank's parts, in place; what is left to do with their outputs.

    The model cannot be run any more by itself. None, and nothing is done, where transformers has
    split it in another way than a `LeanDecoder` could take over.
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
    """A layer of what is here of its weights; a bias that all would add is added by one."""
    vars(module).pop("forward", None)  # transformers' wrapper, around the one of the class
    by_outputs = any(placement.is_shard(0) for placement in module.weight.placements)
    by_inputs = isinstance(module, nn.Linear) and not by_outputs
    for name, parameter in list(module.named_parameters(recurse=False)):
        here = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        kept = name != "bias" or adds_bias or not by_inputs
        plain = nn.Parameter(here.detach(), requires_grad=False) if kept else None
        module.register_parameter(name, plain)
