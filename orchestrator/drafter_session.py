"""One request's session on some drafter. Every failure is an Unavailable: the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from draftloop import logs
from draftloop.errors import DraftloopError, InvalidInput, Unavailable
from draftloop.model_info import ModelInfo
from draftloop.tree import EMPTY_TREE, Draft, DraftBudget, DraftTree, Verdict
from orchestrator.clients import DrafterStream
from orchestrator.metrics import FALLBACKS, reason_of
from orchestrator.replicas import Replica, Replicas
from orchestrator.session import Session
from orchestrator.terms import SessionTerms

log = logs.get(__name__)


class DrafterSession(Session[DrafterStream]):
    """Rounds go without a drafter until it `is_due`."""

    def __init__(self, replicas: Replicas, terms: SessionTerms, *, target: ModelInfo) -> None:
        super().__init__(replicas, terms)
        self._target = target
        self._opening: asyncio.Task[None] | None = None
        self.is_ready = False  # the drafter has prefilled
        self._refused = False  # this request, by a drafter that cannot do what it asks
        self._told = 0
        self._has_drafted = False  # something that a verdict can be about
        self._waits_s = 0.0

    @property
    def asked_for(self) -> bool:
        """Whether it is open or opening."""
        return self._opening is not None

    @property
    def is_due(self) -> bool:
        """Whether the drafter has prefilled, or so soon that a round may wait for it."""
        return self.is_ready or self._waits_s > 0

    def open(self, committed: Sequence[int], waits_s: float | None = None) -> None:
        """Begins to open on the best replica that is not resting; the drafter prefills at once.

        Whoever asks before it has waits once, `waits_s` seconds, or as long as for an answer. Not
        for a request that was refused, or a text that the draft model has no room for.
        """
        if self._refused or not self._has_room(committed):
            return
        replica = next((r for r in self._by_preference(committed) if not r.resting), None)
        if replica is None:
            return
        replica.on_trial(self._terms.answer_timeout_s)
        self._waits_s = self._terms.answer_timeout_s if waits_s is None else waits_s
        self._told, self._has_drafted = len(committed), False
        self._opening = asyncio.create_task(self._open_on(replica, tuple(committed)))

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree = EMPTY_TREE,
    ) -> Draft:
        """A checked draft within the budget. Raises Unavailable where none came in time."""
        if self._opening is None or self._refused or not self._has_room(committed):
            raise self._unopened(committed)
        if not self.is_ready:
            await self._wait_once(self._opening)
        if self._stream is None or not self.is_ready:
            FALLBACKS.labels("opening").inc()
            raise Unavailable("drafter: the session is not open yet")
        try:
            new = committed[self._told :]
            offer = self._fitting(offer)
            heard = verdict if self._has_drafted else None  # else it is about a lost session's
            draft = await self._stream.propose(len(committed), new, heard, budget, offer)
        except DraftloopError as error:
            self._refused = _refuses(error)
            raise self._failed(error) from None
        try:
            self._check(draft, len(committed), budget)
        except InvalidInput as mistake:
            raise self._failed(mistake) from None
        self._told, self._has_drafted = len(committed), True
        self._worked()
        return draft

    def _unopened(self, committed: Sequence[int]) -> Unavailable:
        """Why there is no session, counted; where one may be, it begins to open."""
        if not self._has_room(committed):
            FALLBACKS.labels("context").inc()
            self._drop()
            return Unavailable("drafter: the text has outgrown the draft model's context")
        if self._refused:
            FALLBACKS.labels("refused").inc()
            return Unavailable("drafter: it has refused the request")
        FALLBACKS.labels("no_session").inc()
        self.open(committed)
        return Unavailable("drafter: no session is open")

    def _failed(self, error: DraftloopError) -> Unavailable:
        """What the round is told of a failure, which is counted and costs the session."""
        FALLBACKS.labels(reason_of(error)).inc()
        self._lose(error)
        return Unavailable(f"drafter: {error}")

    async def _wait_once(self, opening: asyncio.Task[None]) -> None:
        """For who asks before the drafter has prefilled.

        A drafter that nobody is connected to is not waited for.
        """
        if self._replica is not None and self._replica.connected:
            seconds, self._waits_s = self._waits_s, 0.0
            await asyncio.wait({opening}, timeout=seconds)

    async def close(self) -> None:
        """Frees the session, even one that is still opening."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
            self._drop()
        await super().close()

    async def _open_on(self, replica: Replica, committed: Sequence[int]) -> None:
        try:
            stream = DrafterStream(replica, self._terms)
            self._enter(replica, stream)
            await stream.open(committed)
        except DraftloopError as error:
            self._refused = _refuses(error)
            self._lose(error)
        except Exception as error:  # a task of its own: nobody else would hear of it
            log.error("unforeseen error", exc_info=error)
            self._lose(error)
        else:
            self.is_ready = True
            self._worked()
            self._served(committed)

    def _has_room(self, committed: Sequence[int]) -> bool:
        """Whether the draft model's context holds the text and a token more."""
        model = self._replicas.model
        return model is None or len(committed) < model.context_length

    def _fitting(self, offer: DraftTree) -> DraftTree:
        """As many of its nodes, the best first, as a drafter takes."""
        model = self._replicas.model
        if model is None or len(offer) <= model.max_draft_nodes:
            return offer
        return offer.first(model.max_draft_nodes)

    def _check(self, draft: Draft, length: int, budget: DraftBudget) -> None:
        """A drafter's mistake must cost this draft, not the request."""
        if draft.committed_length != length:
            rule = f"must be {length}, the length asked for"
            raise InvalidInput("committed_length", rule, draft.committed_length)
        tree = draft.tree
        tree.validate(vocabulary_size=self._target.vocabulary_size, max_nodes=budget.max_nodes)
        deepest = max(tree.depths(), default=0)
        if deepest > budget.max_depth:
            rule = f"must have depth at most {budget.max_depth}"
            raise InvalidInput("draft.parents", rule, deepest)

    def _lose(self, error: Exception) -> None:
        log.warning("drafter session lost", reason=str(error))
        if self._refused:  # no failure of the replica: others go on with it
            self._drop()
        else:
            super()._lose(error)

    def _drop(self) -> None:
        self._opening, self.is_ready = None, False
        super()._drop()


def _refuses(error: DraftloopError) -> bool:
    """Whether a drafter cannot do what the request asks; an offer that is none is another's."""
    return isinstance(error, InvalidInput) and not error.field.startswith("draft.")
