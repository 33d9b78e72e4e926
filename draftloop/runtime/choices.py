"""The result of sampling from rows of logits: the best tokens, and the share of any token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

EXCLUDED = -math.inf


@dataclass(frozen=True, slots=True)
class Choices:
    """The tokens with the best scores, log p + G, of every row.

    token_ids: [rows, count], best first; if `count` is 1, the lower id of equal scores. scores:
    float32 [rows, vocabulary]. bests: [rows, count], the scores of `token_ids`. masses: [rows], the
    sum of exp(score - best) over the row.
    """

    token_ids: list[list[int]]
    scores: Tensor
    bests: list[list[float]]
    masses: list[float]

    @classmethod
    def from_scores(cls, scores: Tensor, count: int) -> Choices:
        """Computed by torch operations, on any device."""
        if count == 1:  # arg max takes the first of equals, topk any
            tokens = scores.argmax(dim=-1, keepdim=True)
            bests = scores.gather(-1, tokens)
        else:
            bests, tokens = scores.topk(count, dim=-1)
        masses = (scores - bests[:, :1]).exp().sum(dim=-1)
        return cls(tokens.tolist(), scores, bests.tolist(), masses.tolist())

    @property
    def firsts(self) -> list[int]:
        """The chosen token of every row."""
        return [tokens[0] for tokens in self.token_ids]

    def shares(self) -> list[list[float]]:
        """[rows, count]: the softmax of the scores at `token_ids`; 0 if all tokens are excluded."""
        return [
            [_share(score, bests[0], mass) for score in bests]
            for bests, mass in zip(self.bests, self.masses, strict=True)
        ]

    def shares_of(self, rows: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """The softmax of the scores at (row, token) pairs."""
        return [
            _share(score, self.bests[row][0], self.masses[row])
            for row, score in zip(rows, self.scores_of(rows, token_ids), strict=True)
        ]

    def scores_of(self, rows: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """The scores at (row, token) pairs."""
        pairs = list(zip(rows, token_ids, strict=True))
        if all(token == self.token_ids[row][0] for row, token in pairs):
            return [self.bests[row][0] for row in rows]
        known: list[float] = self.scores[list(rows), list(token_ids)].tolist()
        return known


def _share(score: float, best: float, mass: float) -> float:
    """Softmax value; 0 also if it is not finite, as for an infinite score."""
    share = 0.0 if score == EXCLUDED else math.exp(score - best) / mass
    return share if math.isfinite(share) else 0.0
