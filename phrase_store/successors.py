"""Token recycling: the target's likeliest successors of a token, kept from verdicts (2408.08696).

A verifier computes a whole distribution after every node and uses one token of it. The best few of
the rest are likely to follow the same token again: a draft that costs nothing but their ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftloop.tree import MOST_SUCCESSORS

UNKNOWN = -1


class SuccessorTable:
    """`rows`: int32 [vocabulary, MOST_SUCCESSORS], best first; 32 bytes a token of the vocabulary.

    One thread writes; a reader may see a row that is half new, which costs it a guess.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.rows = np.full((vocabulary_size, MOST_SUCCESSORS), UNKNOWN, np.int32)

    def learn(self, token_ids: Sequence[int], successor_ids: Sequence[int]) -> None:
        """Keeps the successors of each token, equally many for each; the newest win.

        What does not fit the tokens, or is none of the vocabulary's, is left out. So are those of
        which one comes twice, as behind a node of which a target says no numbers: they would be
        siblings, and no verifier takes such a draft.
        """
        count = len(successor_ids) // max(len(token_ids), 1)
        if not 0 < count <= MOST_SUCCESSORS or count * len(token_ids) != len(successor_ids):
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
        """One that learns for itself from now on."""
        made = SuccessorTable(0)
        made.rows = self.rows.copy()
        return made
