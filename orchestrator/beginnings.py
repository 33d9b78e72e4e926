"""Which replica has computed which beginning of a text, so that the next such text goes there."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

Place = TypeVar("Place")

BLOCK = 64  # tokens; a beginning is known by its whole blocks
MOST_BLOCKS = 512  # of one text
MOST_KNOWN = 32_768  # of all texts, some MiB; those that were of no use for longest go first


class Beginnings(Generic[Place]):
    """The places of the latest texts, by all of their beginnings. Groups know nothing of others."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._places: OrderedDict[bytes, Place] = OrderedDict()

    def note(self, tokens: Sequence[int], group: str, place: Place) -> None:
        """The text is at this place from now on."""
        for key in reversed(_keys(tokens, group)):  # what is forgotten first is the longest
            self._places[key] = place
            self._places.move_to_end(key)
        while len(self._places) > self._most:
            self._places.popitem(last=False)

    def find(self, tokens: Sequence[int], group: str) -> tuple[Place | None, int]:
        """Where the longest beginning of the text is, and of how many tokens it is; or None, 0."""
        found: Place | None = None
        count = 0
        for key in _keys(tokens, group):
            known = self._places.get(key)
            if known is None:
                break
            found, count = known, count + BLOCK
        return found, count

    def forget(self, place: Place) -> None:
        """What was at this place is gone."""
        for key in [key for key, known in self._places.items() if known == place]:
            del self._places[key]


def _keys(tokens: Sequence[int], group: str) -> list[bytes]:
    """A digest of every beginning of whole blocks, the shortest first."""
    count = min(len(tokens) // BLOCK, MOST_BLOCKS)
    blocks = np.array(tokens[: count * BLOCK], np.int32).tobytes()
    size = len(blocks) // max(count, 1)
    digest = hashlib.blake2b(group.encode(), digest_size=16)
    keys = []
    for number in range(count):
        digest.update(blocks[number * size : (number + 1) * size])
        keys.append(digest.digest())
    return keys
