"""Bringing a slot up to the committed text."""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel


def prefill(
    model: LanguageModel, slot: Slot, committed: Sequence[int], *, chunk_tokens: int, leave: int = 1
) -> Task[None]:
    """Runs the committed tokens that are not in the cache yet, but for the last `leave` or more.

    In chunks, so that a long prompt shares the forwards with other sessions' rounds. What is left
    goes with the forward that wants logits.
    """
    slot.advance(committed)
    slot.truncate(min(slot.length, len(committed) - leave))
    while len(committed) - leave - slot.length > chunk_tokens:
        chunk = committed[slot.length : slot.length + chunk_tokens]
        yield Forward(model, slot, chunk, logits_from=len(chunk))
