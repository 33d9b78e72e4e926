"""Common beginnings of texts are computed once: the rows that a slot holds are shared.

A slot keeps its rows when its session ends. A session that goes on with such a text, as the next
turn of a chat does, takes that slot; for any other the rows of the longest beginning that a slot
holds, a running session's too, are copied, which takes a hundredth of computing them. A row is the
same whatever was computed beside it, so nothing that is said changes.

Only sessions of one `group` share: how long a prompt takes tells whether its beginning was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draftloop.runtime.kv_cache import KVCache, Slot

LEAST = 16  # tokens; fewer are computed as soon as they are found
# Of what a slot holds, a session that goes on with it begins with so much: less is copied, so that
# a beginning that many texts have outlives the rest of one of them.
MOST_OF_IT = 0.5


@dataclass(slots=True, eq=False)
class Text:
    """A session's committed tokens, as they grow, and with whom it shares their rows.

    `read_only`: it takes from others and gives them nothing.
    """

    tokens: Sequence[int]
    group: str
    read_only: bool = False
    # Of the tokens, those that were compared before: they grow, and never change.
    _known: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def first(self, count: int) -> npt.NDArray[np.int64]:
        """So many of the tokens; from the engine's thread and the event loop's."""
        known = self._known  # read once: the other thread may replace it
        if len(known) < count:
            new = np.array(self.tokens[len(known) :], np.int64)
            self._known = known = np.concatenate([known, new])
        return known[:count]


def acquire(cache: KVCache, max_pending: int, text: Text) -> Slot:
    """A slot for this text, which may hold its beginning already."""
    kept = {slot.index: (_common(slot, text), slot.length) for slot in cache.kept_slots()}
    best = max(kept, key=lambda index: kept[index][0], default=None)
    count, length = kept[best] if best is not None else (0, 0)
    goes_on = not text.read_only and count >= max(LEAST, MOST_OF_IT * length)
    slot = cache.acquire(max_pending, index=best if goes_on else None)
    found, _ = kept.get(slot.index, (0, 0))
    slot.length = slot.shared = found if found >= LEAST else 0
    slot.text = text
    return slot


def bring(slot: Slot, most: int) -> None:
    """Copies to the slot the rows behind its own that another slot has of the same text.

    Up to position `most`, and none where they are fewer than LEAST. On the engine's thread only.
    """
    text, cache = slot.text, slot.cache
    if text is None or slot.pending or most < slot.length + LEAST:
        return
    others = [other for other in cache.known_slots() if other is not slot]
    found = [(min(_common(other, text), most), other) for other in others]
    count, source = max(found, key=lambda pair: pair[0], default=(0, slot))
    if count < slot.length + LEAST:
        return
    cache.copy(source.index, slot.index, slot.length, count)
    slot.shared += count - slot.length
    slot.length = count


def computes_for(first: Slot, other: Slot) -> bool:
    """Whether rows that the first is about to compute are the other's next ones too."""
    if first.text is None or other.text is None or first.text.read_only:
        return False
    return _alike(first.text, other.text) >= max(first.length, other.length) + LEAST


def _common(slot: Slot, text: Text) -> int:
    """How many rows of the slot are those of the text's first tokens; never of all of them."""
    held = slot.text
    return 0 if held is None or held.read_only else min(_alike(held, text), slot.length)


def _alike(first: Text, other: Text) -> int:
    """How many tokens both begin with, within one group; never all of the other's."""
    most = min(len(first.tokens), len(other.tokens) - 1)
    if first.group != other.group or most < LEAST:
        return 0
    ours, theirs = first.first(most), other.first(most)
    if not np.array_equal(ours[:LEAST], theirs[:LEAST]):
        return 0
    same = ours == theirs
    return most if same.all() else int(same.argmin())
