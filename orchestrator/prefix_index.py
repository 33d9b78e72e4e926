"""Which replica has computed which prefix, so that the next text with that prefix goes there."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

Place = TypeVar("Place")

BLOCK_TOKENS = 64  # tokens; prefixes are known in whole blocks
MAX_BLOCKS = 512  # of one text
MAX_PREFIXES = 32_768  # prefixes of all texts, some MiB; those noted longest ago are evicted first


class PrefixIndex(Generic[Place]):
    """Maps all prefixes of the latest texts to places. Groups are separate from each other."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._places: OrderedDict[bytes, Place] = OrderedDict()

    def note(self, tokens: Sequence[int], group: str, place: Place) -> None:
        """Records that this place holds the text."""
        # In this order, so that the longest prefix is evicted first.
        for key in reversed(_prefix_keys(tokens, group)):
            self._places[key] = place
            self._places.move_to_end(key)
        while len(self._places) > self._max_prefixes:
            self._places.popitem(last=False)

    def find(self, tokens: Sequence[int], group: str) -> tuple[Place | None, int]:
        """Place and length in tokens of the longest known prefix of the text; or None, 0."""
        place: Place | None = None
        count = 0
        for key in _prefix_keys(tokens, group):
            known_place = self._places.get(key)
            if known_place is None:
                break
            place, count = known_place, count + BLOCK_TOKENS
        return place, count

    def forget(self, place: Place) -> None:
        """Removes all prefixes of a place that no longer holds them."""
        for key in [key for key, known in self._places.items() if known == place]:
            del self._places[key]


def _prefix_keys(tokens: Sequence[int], group: str) -> list[bytes]:
    """A digest of every prefix of whole blocks, shortest first."""
    count = min(len(tokens) // BLOCK_TOKENS, MAX_BLOCKS)
    blocks = np.array(tokens[: count * BLOCK_TOKENS], np.int32).tobytes()
    size = len(blocks) // max(count, 1)
    digest = hashlib.blake2b(group.encode(), digest_size=16)
    keys = []
    for number in range(count):
        digest.update(blocks[number * size : (number + 1) * size])
        keys.append(digest.digest())
    return keys
