"""One request's session on a drafter. Every failure is an Unavailable, so the loop goes on."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from draftloop import logs
from draftloop.errors import DraftloopError, InvalidInput, Unavailable
from draftloop.tree import EMPTY_TREE, Draft, DraftBudget, DraftTree, Verdict
from orchestrator.clients import DrafterStream
from orchestrator.metrics import FALLBACKS, reason_of
from orchestrator.replicas import Replica, Replicas
from orchestrator.selection import restrict_to_vocabulary
from orchestrator.session import Session
from orchestrator.stream import NoAnswer, ServiceFailed
from orchestrator.terms import SessionTerms

# Proposals that may fail one after the other although the drafter can be reached. Then the request
# goes on without it: every further one could cost the whole timeout of an answer.
MAX_FAILED_PROPOSALS = 3

log = logs.get(__name__)


class DrafterSession(Session[DrafterStream]):
    """A session that rounds do without until it `is_due`.

    Its state is the task that opens it: None before opening and after a loss, running while the
    drafter prefills, and done once it can draft. Once a drafter has refused the request, or
    MAX_FAILED_PROPOSALS have failed in a row, the session is never opened again.
    """

    def __init__(self, replicas: Replicas, terms: SessionTerms) -> None:
        super().__init__(replicas, terms)
        # tokens of the text that a replica has already computed
        self._prefilled_tokens: int | None = None
        self._opening: asyncio.Task[None] | None = None
        self._refused = False  # whether a drafter said that it cannot serve this request
        self._failed_proposals = 0  # since the last one that succeeded
        self._max_wait_s = 0.0

    @property
    def is_requested(self) -> bool:
        """Whether the session is open or opening."""
        return self._opening is not None

    @property
    def is_ready(self) -> bool:
        """Whether the drafter has prefilled."""
        return self._opening is not None and self._opening.done()

    @property
    def is_due(self) -> bool:
        """Whether the drafter has prefilled, or a round may still wait for that."""
        return self.is_ready or self._max_wait_s > 0

    def can_serve(self, committed: Sequence[int]) -> bool:
        """Whether a drafter can take the request and its text."""
        is_given_up = self._refused or self._failed_proposals >= MAX_FAILED_PROPOSALS
        return not is_given_up and self._has_room(committed)

    def tokens_to_prefill(self, committed: Sequence[int]) -> int:
        """How many tokens a replica would have to prefill.

        The tokens that a replica has already computed are looked up only at the first call: rounds
        call this until a session is open, and the look-up is slow for a long text.
        """
        if self._prefilled_tokens is None:
            self._prefilled_tokens = self._replicas.cached_tokens(
                committed, self._terms.request.prefix_group
            )
        return len(committed) - self._prefilled_tokens

    def open(self, committed: Sequence[int], max_wait_s: float | None = None) -> None:
        """Starts opening on the best replica that is not resting; the drafter then prefills.

        The first `propose` before it has prefilled waits up to `max_wait_s` seconds; None: the
        timeout of an answer. Does nothing if no drafter can serve the request, or if all replicas
        are resting.
        """
        if not self.can_serve(committed):
            return
        replica = next((r for r in self._by_preference(committed) if not r.is_resting), None)
        if replica is None:
            return
        replica.reserve_for_trial(self._terms.answer_timeout_s)
        self._max_wait_s = self._terms.answer_timeout_s if max_wait_s is None else max_wait_s
        self._opening = asyncio.create_task(self._open_on(replica, tuple(committed)))

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree = EMPTY_TREE,
    ) -> Draft:
        """A checked draft within the budget. Raises Unavailable if none came in time."""
        stream = await self._ready_stream(committed)
        try:
            draft = await stream.propose(
                committed, self._known_verdict(verdict), budget, self._trim_offer(offer)
            )
        except DraftloopError as error:
            self._refused = _is_refusal(error)
            self._failed_proposals += isinstance(error, (NoAnswer, ServiceFailed))
            raise self._drop_after_failure(error) from None
        try:
            self._check_draft(draft, len(committed), budget)
        except InvalidInput as mistake:
            self._failed_proposals += 1
            raise self._drop_after_failure(mistake) from None
        self._failed_proposals = 0
        self._record_success()
        tree = restrict_to_vocabulary(draft.tree, self._terms.target.vocabulary_size)
        return draft if tree is draft.tree else dataclasses.replace(draft, tree=tree)

    async def _ready_stream(self, committed: Sequence[int]) -> DrafterStream:
        """The open stream. Raises Unavailable if there is none; starts opening if necessary."""
        if not self._has_room(committed):
            await self._cancel_opening()
            self._drop()
            raise _fallback_error("context", "the text has outgrown the draft model's context")
        if self._refused:
            raise _fallback_error("refused", "it has refused the request")
        if self._failed_proposals >= MAX_FAILED_PROPOSALS:
            raise _fallback_error("failing", f"{self._failed_proposals} proposals have failed")
        if self._opening is None:
            self.open(committed)
            raise _fallback_error("no_session", "no session is open")
        if not self.is_ready:
            await self._wait_for_prefill(self._opening)
        if self._stream is None or not self.is_ready:
            raise _fallback_error("opening", "the session is not open yet")
        return self._stream

    def _drop_after_failure(self, error: DraftloopError) -> Unavailable:
        """Drops the session after a failure; returns the error that the round gets."""
        self._handle_failure(error)
        return _fallback_error(reason_of(error), str(error))

    async def _wait_for_prefill(self, opening: asyncio.Task[None]) -> None:
        """Waits for the prefill, once per opening, and not for a drafter without a connection."""
        if self._replica is not None and self._replica.is_connected:
            seconds, self._max_wait_s = self._max_wait_s, 0.0
            await asyncio.wait({opening}, timeout=seconds)

    async def close(self) -> None:
        """Frees the session, even if it is still opening."""
        await self._cancel_opening()
        await super().close()

    async def _cancel_opening(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
            self._drop()

    async def _open_on(self, replica: Replica, committed: Sequence[int]) -> None:
        try:
            stream = DrafterStream(replica, self._terms)
            self._attach(replica, stream)
            await stream.open(committed)
        except DraftloopError as error:
            self._refused = _is_refusal(error)
            self._handle_failure(error)
        except Exception as error:  # in a task of its own, nobody else would log it
            log.error("unforeseen error", exc_info=error)
            self._handle_failure(error)
        else:  # not yet a success: it must be able to draft as well
            self._report_load()
            self._record_prefix(committed)

    def _has_room(self, committed: Sequence[int]) -> bool:
        """Whether the draft model's context has room for the text and one more token."""
        model = self._replicas.model
        return model is None or len(committed) < model.context_length

    def _known_verdict(self, verdict: Verdict | None) -> Verdict | None:
        """The verdict; None if the target predicted a token unknown to the draft model."""
        model = self._replicas.model
        if verdict is None or model is None:
            return verdict
        highest = max((verdict.root_prediction, *verdict.node_predictions))
        return verdict if highest < model.vocabulary_size else None

    def _trim_offer(self, offer: DraftTree) -> DraftTree:
        """The offer without tokens unknown to the draft model, cut to as many nodes as it takes.

        The best nodes come first.
        """
        model = self._replicas.model
        if model is None:
            return offer
        return restrict_to_vocabulary(offer, model.vocabulary_size).first(model.max_draft_nodes)

    def _check_draft(self, draft: Draft, length: int, budget: DraftBudget) -> None:
        """Raises InvalidInput for an invalid draft, which must cost the draft, not the request.

        Tokens of the draft model alone pass: its output layer may be larger than the target's.
        """
        if draft.committed_length != length:
            rule = f"must be {length}, the length asked for"
            raise InvalidInput("committed_length", rule, draft.committed_length)
        tree, model = draft.tree, self._replicas.model
        sizes = [info.vocabulary_size for info in (self._terms.target, model) if info is not None]
        tree.validate(vocabulary_size=max(sizes), max_nodes=budget.max_nodes)
        deepest = max(tree.depths(), default=0)
        if deepest > budget.max_depth:
            rule = f"must have depth at most {budget.max_depth}"
            raise InvalidInput("draft.parents", rule, deepest)

    def _handle_failure(self, error: Exception) -> None:
        log.warning("drafter session lost", reason=str(error))
        if self._refused:  # not the replica's failure: other requests go on using it
            self._drop()
        else:
            super()._handle_failure(error)

    def _drop(self) -> None:
        self._opening = None
        super()._drop()


def _fallback_error(reason: str, text: str) -> Unavailable:
    """Counts a fallback; returns the error for the round that does without the drafter."""
    FALLBACKS.labels(reason).inc()
    return Unavailable(f"drafter: {text}")


def _is_refusal(error: DraftloopError) -> bool:
    """Whether the drafter cannot serve the request. An invalid offer is not the request's fault."""
    return isinstance(error, InvalidInput) and not error.field.startswith("draft.")
