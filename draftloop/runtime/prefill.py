"""Prefill: computes the keys and values of a slot's committed tokens."""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import copy_shared_prefix


def prefill(
    model: LanguageModel,
    slot: Slot,
    committed: Sequence[int],
    *,
    chunk_tokens: int,
    whole: bool = False,
) -> Task[None]:
    """Runs the committed tokens that are not in the cache yet, except the last one.

    Runs in chunks, so that a long prompt shares forwards with other sessions' rounds. A chunk has
    at most `chunk_tokens`, and no more than one forward should take (`StepSize`). Without `whole`,
    up to one chunk is left to the next forward, the one that returns logits.
    """
    slot.advance(committed)
    end = len(committed) - 1
    slot.truncate(min(slot.length, end))
    copy_shared_prefix(slot, end)

    def piece() -> Forward:
        """The forward over the next chunk."""
        left = end - slot.length
        size = min(chunk_tokens, model.step_size.prompt_tokens, left)
        chunk = committed[slot.length : slot.length + size]
        return Forward(model, slot, chunk, logits_from=size, left=left, renewed=renewed)

    def renewed() -> Forward:
        """The next chunk after copying rows that other sessions have computed meanwhile."""
        copy_shared_prefix(slot, end - 1)
        return piece()

    while end - slot.length > (0 if whole else min(chunk_tokens, model.step_size.prompt_tokens)):
        yield piece()
