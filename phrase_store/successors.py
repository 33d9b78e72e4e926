"""Token recycling: the target's likeliest successors of a token, kept from verdicts (2408.08696).

A verifier computes a whole distribution after every node and uses one token of it. The likeliest
few tokens are likely to follow the same token again. Such a draft costs only the transfer of their
ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftloop.tree import MAX_SUCCESSORS

UNKNOWN = -1


class SuccessorTable:
    """`rows`: int32 [vocabulary, MAX_SUCCESSORS], best first; 32 bytes per vocabulary token.

    One thread writes. A reader may see a half updated row, which costs it at most a wrong guess.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.rows = np.full((vocabulary_size, MAX_SUCCESSORS), UNKNOWN, np.int32)

    def learn(self, token_ids: Sequence[int], successor_ids: Sequence[int]) -> None:
        """Stores the successors of each token, equally many for each; the newest ones win.

        Nothing is stored if the counts do not match or an id is outside the vocabulary. Rows with
        duplicates, as for a node whose logits are NaN, are left out: duplicates would
        become siblings, and verifiers refuse drafts with equal siblings.
        """
        count = len(successor_ids) // max(len(token_ids), 1)
        if not 0 < count <= MAX_SUCCESSORS or count * len(token_ids) != len(successor_ids):
            return
        successors = np.array(successor_ids, np.int64).reshape(len(token_ids), count)
        if successors.min() >= 0 and successors.max() < len(self.rows):
            differ = (np.diff(np.sort(successors, axis=1), axis=1) > 0).all(axis=1)
            known = np.array(token_ids, np.int64)[differ]
            self.rows[known, :count] = successors[differ]
            self.rows[known, count:] = UNKNOWN

    def clear(self) -> None:
        """Forgets everything."""
        self.rows[:] = UNKNOWN

    def copy(self) -> SuccessorTable:
        """An independent copy."""
        made = SuccessorTable(0)
        made.rows = self.rows.copy()
        return made
