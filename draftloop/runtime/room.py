"""Sizes the KV cache and the context length by the available memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from draftloop import logs
from draftloop.errors import StartupFailure
from draftloop.runtime import memory_left
from draftloop.runtime.attention_shapes import AttentionShapes
from draftloop.runtime.kv_cache import CacheShape, KVCache
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.memory_left import GIB
from draftloop.runtime.trial import error_text

# A context up to this length is always tried, however much memory is reported free.
UNASKED = 4096
SHARE_OF_KEPT = 0.25  # part of `memory_share` for texts of ended sessions

log = logs.get(__name__)


@contextmanager
def enough_memory(device: str) -> Iterator[None]:
    """Turns lack of GPU memory inside it into a StartupFailure."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise StartupFailure(
            f"device: {device} has too little memory for this model beside its keys and values; "
            f"lower max_sessions or context_length ({error_text(error)})"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory that a model's keys and values need."""

    layers: int
    kept: AttentionShapes
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Size of a token's keys and values in all layers."""
        return 2 * self.layers * self.kept.kv_heads * self.kept.head_dim * self.dtype.itemsize

    def context(self, options: ModelOptions, requested: int) -> int:
        """The context length: `requested`, or less if memory is short and no length was configured.

        Otherwise a model trained for a million tokens would need memory for as many per session.
        """
        if options.context_length is not None or requested <= UNASKED:
            return requested
        rows = int(self._most(options)) // (self.bytes_per_token * options.max_sessions)
        fitting = max(UNASKED, rows - options.max_draft_nodes)
        if fitting < requested:
            log.warning(
                "context shortened",
                context_length=fitting,
                trained=requested,
                reason=f"memory for {options.max_sessions} sessions; fewer sessions "
                "(max_sessions) may be longer",
            )
        return min(requested, fitting)

    def _kept_rows(self, options: ModelOptions) -> int | None:
        """Rows for texts of ended sessions; None except on CPUs, where memory is taken lazily."""
        if self.device.type != "cpu":
            return None
        return int(SHARE_OF_KEPT * self._most(options)) // self.bytes_per_token

    def _most(self, options: ModelOptions) -> float:
        """Bytes for keys and values on this device; ranks of a split model share a CPU's memory."""
        takers = options.tensor_parallel_size if self.device.type == "cpu" else 1
        return options.memory_share * memory_left.free_bytes(self.device) / takers

    def cache(self, options: ModelOptions, context_length: int) -> KVCache:
        """Allocates the cache. Raises StartupFailure if there is not enough memory."""
        shape = CacheShape(
            layers=self.layers,
            slots=options.max_sessions,
            kv_heads=self.kept.kv_heads,
            rows=context_length + options.max_draft_nodes,
            head_dim=self.kept.head_dim,
        )
        try:
            return KVCache(
                shape, dtype=self.dtype, device=self.device, touched_rows=self._kept_rows(options)
            )
        except (RuntimeError, MemoryError) as error:
            takes = self.bytes_per_token * shape.rows * shape.slots / GIB
            raise StartupFailure(
                f"max_sessions: {shape.slots} sessions of {context_length} tokens take "
                f"{takes:,.1f} GiB of keys and values, which {self.device} has not; "
                f"lower max_sessions or context_length"
            ) from error
