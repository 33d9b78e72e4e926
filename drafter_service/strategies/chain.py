"""Drafts that are chains whose tokens draft models check, several in a forward."""

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
    """A chain under construction; `reach` is the chance that all of it is accepted.

    `writers`: which of several draft models each token is of.
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
        """Adds a token that is accepted with `estimate` once all before it are.

        `score` is its share of the draft model's scores, or what another source says of itself.
        """
        self.token_ids.append(token)
        self.scores.append(score)
        self.estimates.append(estimate)
        self.sources.append(source)
        self.writers.append(writer)
        self.reach *= estimate

    def cut(self, depth: int) -> None:
        """Drops what is deeper than allowed, and a stop token with it: that comes last."""
        if depth < len(self):
            del self.token_ids[depth:], self.scores[depth:]
            del self.estimates[depth:], self.sources[depth:], self.writers[depth:]
            self.reach, self.ended = math.prod(self.estimates), False

    def copy(self) -> Drafted:
        """One that grows on its own."""
        return Drafted(
            [*self.token_ids], [*self.scores], [*self.estimates], [*self.sources],
            [*self.writers], self.reach, self.ended,
        )  # fmt: skip

    def tree(self, start: int = 0) -> DraftTree:
        """The chain as it is now, from the token at `start` on."""
        return DraftTree(
            token_ids=tuple(self.token_ids[start:]),
            parents=tuple(range(ROOT, len(self) - start - 1)),
            estimates=tuple(self.estimates[start:]),
            sources=tuple(self.sources[start:]),
        )


class Chain(Strategy):
    """Remembers its draft, and how likely it said that every token of it was."""

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._last_draft = EMPTY_TREE
        self._last_scores: list[float] = []
        self._last_runs: list[int] = []

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Calibrates the estimates by what was accepted.

        Who asked may have verified less: the likeliest nodes, which come first.
        """
        if verdict is None:
            return
        count = len(verdict.node_predictions)
        scores, runs = self._last_scores[:count], self._last_runs[:count]
        self.remembered(self._last_draft.first(count), scores, runs)
        if verdict.judges(self._last_draft):
            self.calibrate(self._last_draft, scores, verdict, runs)

    def calibrate(
        self, draft: DraftTree, scores: Sequence[float], verdict: Verdict, runs: Sequence[int]
    ) -> None:
        """Learns from a verdict on what was verified of the draft."""
        self.session.experience.calibration.observe(draft, scores, verdict, runs)

    def remembered(self, draft: DraftTree, scores: list[float], runs: list[int]) -> DraftTree:
        """The draft, with its raw scores and runs kept for its verdict."""
        self._last_draft, self._last_scores, self._last_runs = draft, scores, runs
        return draft

    def chain_depth(self, budget: DraftBudget) -> int:
        """Most tokens of the chain itself."""
        return min(budget.max_nodes, budget.max_depth)

    def adopt(
        self, drafted: Drafted, verdict: Verdict, scores: Sequence[float],
        calibration: Calibration, writer: int = 0,
    ) -> float:  # fmt: skip
        """Adds what a draft model's own verdict emits, with its probabilities of these tokens.

        Returns how many of them are expected to be accepted where their start is.
        """
        drafted.ended = verdict.stopped  # nothing is ever emitted after a stop token
        gain, reach = 0.0, 1.0
        for token, score in zip(verdict.emitted_token_ids, scores, strict=True):
            estimate = correct(calibration, SOURCE, score, len(drafted) + 1)
            drafted.add(token, score, estimate, writer=writer)
            reach *= estimate
            gain += reach
        return gain
