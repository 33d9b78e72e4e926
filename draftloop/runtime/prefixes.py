"""Prefix caching: keys and values of a common prefix are computed once and shared.

A slot keeps its rows when its session ends. A session that continues such a text, for instance the
next turn of a chat, takes over that slot. For any other session, the rows of the longest common
prefix are copied from the slot that holds it, even a running session's. That takes a hundredth of
the time of computing them. A row does not depend on what was computed with it, so outputs do not
change.

Only sessions of one `group` share, since the time that a prompt takes reveals whether its prefix
was cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draftloop.runtime.kv_cache import KVCache, Slot

MIN_SHARED_TOKENS = 16  # tokens; computing fewer takes no longer than finding them
# A session takes over a slot only if it shares at least this part of the slot's rows. Otherwise
# they are copied, so that the next session with the same prefix still finds them.
MIN_TAKEOVER_SHARE = 0.5


@dataclass(slots=True, eq=False)
class Text:
    """A session's committed tokens, as they grow, and the group that may share their rows.

    `read_only`: the session uses rows of others, but others do not use its rows.
    """

    tokens: Sequence[int]
    group: str
    read_only: bool = False
    # The tokens converted for comparison so far: they are only ever appended to.
    _known: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def first(self, count: int) -> npt.NDArray[np.int64]:
        """The first `count` tokens; called from the engine's thread and the event loop."""
        known = self._known  # read once: the other thread may replace it
        if len(known) < count:
            new = np.array(self.tokens[len(known) :], np.int64)
            self._known = known = np.concatenate([known, new])
        return known[:count]


def acquire(cache: KVCache, max_pending: int, text: Text) -> Slot:
    """A slot for a session with this text, which may already hold a prefix of it."""
    kept = {slot.index: (_reusable_rows(slot, text), slot.length) for slot in cache.kept_slots()}
    best = max(kept, key=lambda index: kept[index][0], default=None)
    count, length = kept[best] if best is not None else (0, 0)
    takes_over = not text.read_only and count >= max(MIN_SHARED_TOKENS, MIN_TAKEOVER_SHARE * length)
    slot = cache.acquire(max_pending, index=best if takes_over else None)
    found, _ = kept.get(slot.index, (0, 0))
    slot.length = slot.shared = found if found >= MIN_SHARED_TOKENS else 0
    slot.text = text
    return slot


def copy_shared_prefix(slot: Slot, stop: int) -> None:
    """Extends the slot's rows by copying from the slot with the longest common prefix.

    Copies up to position `stop`, but only if there are at least MIN_SHARED_TOKENS rows to copy. On
    the engine's thread only.
    """
    text, cache = slot.text, slot.cache
    if text is None or slot.pending or stop < slot.length + MIN_SHARED_TOKENS:
        return
    others = [other for other in cache.known_slots() if other is not slot]
    found = [(min(_reusable_rows(other, text), stop), other) for other in others]
    count, source = max(found, key=lambda pair: pair[0], default=(0, slot))
    if count < slot.length + MIN_SHARED_TOKENS:
        return
    cache.copy(source.index, slot.index, slot.length, count)
    slot.shared += count - slot.length
    slot.length = count


def computes_for(first: Slot, other: Slot) -> bool:
    """Whether rows that `first` is about to compute will also be the next ones of `other`."""
    if first.text is None or other.text is None or first.text.read_only:
        return False
    return (
        _common_prefix_length(first.text, other.text)
        >= max(first.length, other.length) + MIN_SHARED_TOKENS
    )


def _reusable_rows(slot: Slot, text: Text) -> int:
    """How many rows of the slot match a prefix of the text; always fewer than its tokens."""
    held = slot.text
    return (
        0 if held is None or held.read_only else min(_common_prefix_length(held, text), slot.length)
    )


def _common_prefix_length(first: Text, other: Text) -> int:
    """Length of the common prefix within one group; always less than the length of `other`."""
    most = min(len(first.tokens), len(other.tokens) - 1)
    if first.group != other.group or most < MIN_SHARED_TOKENS:
        return 0
    first_tokens, other_tokens = first.first(most), other.first(most)
    if not np.array_equal(first_tokens[:MIN_SHARED_TOKENS], other_tokens[:MIN_SHARED_TOKENS]):
        return 0
    same = first_tokens == other_tokens
    return most if same.all() else int(same.argmin())
