"""Stop tokens, in a form that compiled loops can look up."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from draftloop.runtime.compiling import compiled

Stops = NDArray[np.int64]  # sorted token ids


def stops_of(token_ids: Collection[int]) -> Stops:
    """The sorted array that `is_among` searches."""
    return np.array(sorted(token_ids), np.int64)


@compiled
def is_among(token: int, token_ids: Stops) -> bool:
    """Whether a token is in the sorted array; binary search, as clients may name very many."""
    place = np.searchsorted(token_ids, token)
    return bool(place < token_ids.size and token_ids[place] == token)
