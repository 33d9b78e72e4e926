"""Drafts that are chains whose tokens the draft model checks, several in a forward."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from drafter_service.economy import Economy
from drafter_service.review import review
from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.runtime.forward import Forward, Task
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict

SOURCE = TokenSource.DRAFT_MODEL


@dataclass(slots=True)
class Drafted:
    """A chain under construction; `reach` is the chance that all of it is accepted."""

    token_ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    reach: float = 1.0
    ended: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, token: int, score: float, estimate: float, source: TokenSource = SOURCE) -> None:
        """Adds a token that is accepted with `estimate` once all before it are.

        `score` is its share of the draft model's scores, or what another source says of itself.
        """
        self.token_ids.append(token)
        self.scores.append(score)
        self.estimates.append(estimate)
        self.sources.append(source)
        self.reach *= estimate

    def cut(self, depth: int) -> None:
        """Drops what is deeper than allowed, and a stop token with it: that comes last."""
        if depth < len(self):
            del self.token_ids[depth:], self.scores[depth:]
            del self.estimates[depth:], self.sources[depth:]
            self.reach, self.ended = math.prod(self.estimates), False

    def copy(self) -> Drafted:
        """One that grows on its own."""
        return Drafted(
            [*self.token_ids], [*self.scores], [*self.estimates], [*self.sources],
            self.reach, self.ended,
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
    """A chain as deep as pays, at least one token of it per draft forward.

    Subclasses let guesses ride along in every forward (`beside`) and hang more behind the chain's
    end (`lengthened`).
    """

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._economy = Economy(session.model.forward_seconds)
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
            self.session.calibration.observe(self._last_draft, scores, verdict, runs)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """The chain; keys and values of what was drafted ahead and came true are kept."""
        budget = self.session.within_limits(budget)
        depth = self.chain_depth(budget)
        yield from self.prefill(whole=False)
        drafted = Drafted()
        while self._goes_on(drafted, depth, budget):
            began = time.perf_counter()
            guesses = self.beside(drafted, budget)
            logits = yield self._next_forward(drafted.token_ids, guesses)
            known = len(drafted)
            gain = self._take(drafted, guesses, logits)
            seconds = time.perf_counter() - began
            self._economy.observe(seconds, gain, first=not known)
            self.took(len(drafted) - known, seconds)
        drafted.cut(depth)
        draft, scores, runs = self.lengthened(drafted, budget)
        chain = range(1, len(drafted) + 1)
        return self.remembered(draft, drafted.scores + scores, [*chain, *runs])

    def remembered(self, draft: DraftTree, scores: list[float], runs: list[int]) -> DraftTree:
        """The draft, with its raw scores and runs kept for its verdict."""
        self._last_draft, self._last_scores, self._last_runs = draft, scores, runs
        return draft

    def _goes_on(self, drafted: Drafted, depth: int, budget: DraftBudget) -> bool:
        if len(drafted) >= depth or drafted.ended:
            ends_text = drafted.ended and len(drafted) <= depth
            self.end = DraftEnd.TEXT if ends_text else DraftEnd.DEPTH
            return False
        # Whether to draft at all was decided by who asked.
        self.end = DraftEnd.DRAFT_COST
        return not len(drafted) or self._economy.pays(drafted.reach, budget)

    def chain_depth(self, budget: DraftBudget) -> int:
        """Most tokens of the chain itself."""
        return min(budget.max_nodes, budget.max_depth)

    def beside(self, drafted: Drafted, budget: DraftBudget) -> DraftTree:
        """Guesses at what follows the chain, for the draft model to check in its next forward."""
        return EMPTY_TREE

    def took(self, tokens: int, seconds: float) -> None:
        """Learns what the last forward added to the chain and how long it took, all told."""

    def after(self, predictions: Sequence[int]) -> None:
        """Learns the draft model's own tokens after every node of the last guesses."""

    def lengthened(
        self, drafted: Drafted, budget: DraftBudget
    ) -> tuple[DraftTree, list[float], list[int]]:
        """The finished draft, and the raw scores and runs of what hangs behind the chain."""
        return drafted.tree(), [], []

    def _next_forward(self, token_ids: list[int], guesses: DraftTree) -> Forward:
        """The last token that was not run yet, and the guesses under it."""
        session = self.session
        if not token_ids:
            tail = session.committed[session.slot.length :]
            return Forward(
                session.model, session.slot, tail, guesses.token_ids, guesses.parents,
                logits_from=len(tail) - 1,
            )  # fmt: skip
        last = len(token_ids) - 1
        parents = [last if parent == ROOT else last + 1 + parent for parent in guesses.parents]
        return Forward(
            session.model, session.slot, (),
            [token_ids[-1], *guesses.token_ids], [last - 1, *parents],
        )  # fmt: skip

    def _take(self, drafted: Drafted, guesses: DraftTree, logits: Tensor) -> float:
        """Adds the draft model's own tokens, as many as the guesses reveal.

        Returns how many of them are expected to be accepted where their start is.
        """
        before = len(drafted)
        verdict, scores = review(self.session, logits, drafted.token_ids, guesses)
        gain = self.adopt(drafted, verdict, scores)
        if len(guesses):
            accepted = (before + node for node in verdict.accepted_nodes)
            self.session.slot.keep([*range(before), *accepted])
            self.after(verdict.node_predictions)
        return gain

    def adopt(self, drafted: Drafted, verdict: Verdict, scores: Sequence[float]) -> float:
        """Adds what a draft model's own verdict emits, with its probabilities of these tokens.

        Returns how many of them are expected to be accepted where their start is.
        """
        drafted.ended = verdict.stopped  # nothing is ever emitted after a stop token
        gain, reach = 0.0, 1.0
        for token, score in zip(verdict.emitted_token_ids, scores, strict=True):
            estimate = self.session.calibration.correct(SOURCE, score, len(drafted) + 1)
            drafted.add(token, score, estimate)
            reach *= estimate
            gain += reach
        return gain
