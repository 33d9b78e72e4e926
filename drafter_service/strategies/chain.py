"""Drafts that are chains; a draft model checks several of their tokens per forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.calibration import Calibration, correct
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, TokenSource, Verdict

SOURCE = TokenSource.DRAFT_MODEL


@dataclass(slots=True)
class Drafted:
    """A chain under construction.

    `reach`: the probability that all of it is accepted. `writers`: for each token, the index of the
    draft model that wrote it. `ended`: the last token is a stop token.
    """

    token_ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)
    reach: float = 1.0
    ended: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(
        self, token: int, score: float, estimate: float, source: TokenSource = SOURCE,
        writer: int = 0,
    ) -> None:  # fmt: skip
        """Appends a token that is accepted with probability `estimate` if all before it are.

        `score` is the raw value that `estimate` was calibrated from: the token's share of the draft
        model's scores, or another source's own score.
        """
        self.token_ids.append(token)
        self.scores.append(score)
        self.estimates.append(estimate)
        self.sources.append(source)
        self.writers.append(writer)
        self.reach *= estimate

    def cut(self, depth: int) -> None:
        """Truncates the chain to `depth` tokens; that drops any stop token, which comes last."""
        if depth < len(self):
            del self.token_ids[depth:], self.scores[depth:]
            del self.estimates[depth:], self.sources[depth:], self.writers[depth:]
            self.reach, self.ended = math.prod(self.estimates), False

    def copy(self) -> Drafted:
        """An independent copy."""
        return Drafted(
            [*self.token_ids], [*self.scores], [*self.estimates], [*self.sources],
            [*self.writers], self.reach, self.ended,
        )  # fmt: skip

    def tree(self, start: int = 0) -> DraftTree:
        """The current chain as a draft tree, from the token at `start` on."""
        return DraftTree(
            token_ids=tuple(self.token_ids[start:]),
            parents=tuple(range(ROOT, len(self) - start - 1)),
            estimates=tuple(self.estimates[start:]),
            sources=tuple(self.sources[start:]),
        )


class Chain(Strategy):
    """A strategy whose draft is a chain, kept with its raw scores until the verdict arrives."""

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._last_draft = EMPTY_TREE
        self._last_scores: list[float] = []
        self._last_runs: list[int] = []

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Calibrates the estimates by what was accepted.

        The orchestrator may have verified only the likeliest nodes. They come first in the draft.
        """
        if verdict is None:
            return
        count = len(verdict.node_predictions)
        scores, runs = self._last_scores[:count], self._last_runs[:count]
        self.store_draft(self._last_draft.first(count), scores, runs)
        if verdict.judges(self._last_draft):
            self.calibrate(self._last_draft, scores, verdict, runs)

    def calibrate(
        self, draft: DraftTree, scores: Sequence[float], verdict: Verdict, runs: Sequence[int]
    ) -> None:
        """Learns from the verdict on `draft`, the part of the draft that was verified."""
        self.session.experience.calibration.observe(draft, scores, verdict, runs)

    def store_draft(self, draft: DraftTree, scores: list[float], runs: list[int]) -> DraftTree:
        """Stores the draft with its raw scores and runs until its verdict; returns the draft."""
        self._last_draft, self._last_scores, self._last_runs = draft, scores, runs
        return draft

    def chain_depth(self, budget: DraftBudget) -> int:
        """Maximum length of the chain itself."""
        return min(budget.max_nodes, budget.max_depth)

    def adopt(
        self, drafted: Drafted, verdict: Verdict, scores: Sequence[float],
        calibration: Calibration, writer: int = 0,
    ) -> float:  # fmt: skip
        """Appends the tokens that a draft model's verdict emits; `scores` are their raw scores.

        Returns how many of them are expected to be accepted, given that all before them are.
        """
        drafted.ended = verdict.stopped  # nothing is ever emitted after a stop token
        gain, reach = 0.0, 1.0
        for token, score in zip(verdict.emitted_token_ids, scores, strict=True):
            estimate = correct(calibration, SOURCE, score, len(drafted) + 1)
            drafted.add(token, score, estimate, writer=writer)
            reach *= estimate
            gain += reach
        return gain
