"""Bringing a slot up to the committed text."""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prefixes import bring


def prefill(
    model: LanguageModel,
    slot: Slot,
    committed: Sequence[int],
    *,
    chunk_tokens: int,
    whole: bool = False,
) -> Task[None]:
    """Runs the committed tokens that are not in the cache yet, but for the last one or more.

    In chunks, so that a long prompt shares the forwards with other sessions' rounds: of
    `chunk_tokens`, or as many as one forward should take. What is left, up to a chunk, goes with
    the forward that wants logits; where none is wanted yet the `whole` text is run meanwhile.
    """
    slot.advance(committed)
    end = len(committed) - 1
    slot.truncate(min(slot.length, end))
    bring(slot, end)

    def piece() -> Forward:
        """Up to a chunk."""
        left = end - slot.length
        size = min(chunk_tokens, model.step_size.prompt_tokens, left)
        chunk = committed[slot.length : slot.length + size]
        return Forward(model, slot, chunk, logits_from=size, left=left, renewed=renewed)

    def renewed() -> Forward:
        """The same behind what others have computed meanwhile."""
        bring(slot, end - 1)
        return piece()

    while end - slot.length > (0 if whole else min(chunk_tokens, model.step_size.prompt_tokens)):
        yield piece()
