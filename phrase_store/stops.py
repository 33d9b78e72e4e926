"""Tokens that end a text, as compiled loops look them up."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from draftloop.runtime.compiling import compiled

Stops = NDArray[np.int64]  # token ids in order


def in_order(token_ids: Collection[int]) -> Stops:
    """The tokens as `is_among` wants them."""
    return np.array(sorted(token_ids), np.int64)


@compiled
def is_among(token: int, token_ids: Stops) -> bool:
    """Whether a token is one of those, of which a client may name very many."""
    place = np.searchsorted(token_ids, token)
    return bool(place < token_ids.size and token_ids[place] == token)
