"""One request from prompt to last token: draft, verify, commit, again.

The file to read first. The loop owns the committed tokens: services propose and check, only what is
committed here is final, and all other state can be rebuilt from it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from draftloop import tracing
from draftloop.deadline import Deadline
from draftloop.logprobs import PromptLogprobs
from draftloop.phrase import MAX_CONTEXT
from draftloop.request import GenerationRequest
from draftloop.speculation import AUTOREGRESSIVE
from draftloop.tracing import Span
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftEnd,
    DraftTree,
    Verdict,
    Verification,
)
from orchestrator.budget import NO_DRAFT, Controller
from orchestrator.drafting import Drafting
from orchestrator.figures import Piece, RoundTimes, SpeculationFigures, Timings
from orchestrator.metrics import RequestMeter
from orchestrator.outcome import RoundOutcome
from orchestrator.text import TextStream
from orchestrator.verifier_session import VerifierSession

STOP, LENGTH = "stop", "length"


@dataclass(slots=True, kw_only=True)
class Generation:
    """A running request. `committed` holds the prompt and the output; it only grows."""

    request: GenerationRequest
    verifier: VerifierSession
    drafting: Drafting
    controller: Controller
    text: TextStream
    context_length: int
    deadline: Deadline = Deadline()
    figures: SpeculationFigures
    committed: list[int] = field(init=False)
    timings: Timings = field(default_factory=Timings)
    meter: RequestMeter = field(init=False)
    _indexing: asyncio.Task[None] | None = field(init=False, default=None)  # indexes the prompt
    finish_reason: str | None = None
    cached_prompt_tokens: int = 0  # prompt tokens that the verifier did not have to compute
    prompt_logprobs: PromptLogprobs | None = None  # if requested: set when the session is open

    def __post_init__(self) -> None:
        self.committed = list(self.request.prompt)
        self.meter = RequestMeter(self.request.strategy)

    async def run(self) -> AsyncGenerator[Piece, None]:
        """Yields what each round committed. `finish_reason` is set when the output ends."""
        started_ns, trace = time.perf_counter_ns(), tracing.current()
        try:
            with trace.child("open"):
                first = await self._open()
            self.timings.time_to_first_token_ns = time.perf_counter_ns() - started_ns
            piece = self._commit(EMPTY_TREE, first.verdict)
            waited_ns = self.timings.time_to_first_token_ns
            self.meter.record_first_token(len(self.request.prompt), waited_ns, len(piece.token_ids))
            yield piece
            decoding_began_ns = time.perf_counter_ns()
            if self.finish_reason is None:
                await self._prepare_drafting(piece, first)
            round_ended_ns = time.perf_counter_ns()
            while self.finish_reason is None:
                times = RoundTimes()
                with trace.child("round", committed_length=len(self.committed)) as span:
                    draft = await self._draft(times, span)
                    answer = await self._verify(draft, times, span)
                if times.reopened:  # the draft was lost with the session that should have judged it
                    draft = dataclasses.replace(draft, tree=EMPTY_TREE)
                piece = self._commit(draft.tree, answer.verdict, draft.end)
                self._observe(piece, answer, draft_is_lost=times.reopened)
                round_began_ns, round_ended_ns = round_ended_ns, time.perf_counter_ns()
                times.round_ns = round_ended_ns - round_began_ns
                self._learn(draft, answer, piece, times)
                self.timings.decode_ns = round_ended_ns - decoding_began_ns
                yield piece
        finally:
            await asyncio.shield(self._close())

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.committed[len(self.request.prompt) :]

    @property
    def output_length(self) -> int:
        """Number of tokens generated so far, without the copy that `output` makes of them."""
        return len(self.committed) - len(self.request.prompt)

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended the output, if one did."""
        return self.text.stopped_by

    async def _open(self) -> Verification:
        """Opens drafting and verifier session, which prefill at the same time.

        Returns the verifier's answer, which holds the first token.
        """
        self.drafting.open(self.committed)
        self._indexing = asyncio.create_task(self.drafting.index_prompt())
        answer = await self.verifier.open(self.committed)
        self.cached_prompt_tokens = answer.timings.cached_tokens
        self.prompt_logprobs = answer.prompt_logprobs
        return answer

    async def _prepare_drafting(self, piece: Piece, first: Verification) -> None:
        """Finishes indexing the prompt, then observes the first token.

        Called after the first token was yielded: it must not wait for the index of a long prompt.
        """
        if self._indexing is not None:
            await self._indexing
        self._observe(piece, first)

    def _observe(self, piece: Piece, answer: Verification, *, draft_is_lost: bool = False) -> None:
        self.drafting.observe(
            RoundOutcome(
                committed=self.committed,
                new_tokens=len(piece.token_ids),
                draft=piece.draft,
                verdict=answer.verdict,
                draft_is_lost=draft_is_lost,
                is_shared=answer.timings.is_shared,
            )
        )

    async def _draft(self, times: RoundTimes, parent: Span) -> Draft:
        """Gets a draft within the current budget and records in `times` how long it took."""
        asked_ns, fallbacks = time.perf_counter_ns(), self.figures.fallback_rounds
        with parent.child("draft") as span:
            draft = await self.drafting.propose(self.committed, self._budget())
            span.set_attributes(nodes=len(draft.tree), **draft.timings.attributes())
        times.draft_ns = time.perf_counter_ns() - asked_ns
        times.fell_back = self.figures.fallback_rounds > fallbacks
        self.timings.observe_draft(times, draft.timings)
        self.figures.draft_forwards += draft.timings.forwards
        return draft

    def _budget(self) -> DraftBudget:
        if self.request.strategy == AUTOREGRESSIVE:
            return NO_DRAFT
        remaining = self.request.max_tokens - self.output_length
        # The current verifier may have a shorter context than the one that the request relies on.
        context_length = min(self.context_length, self.verifier.context_length)
        room = min(remaining, context_length - len(self.committed)) - 1
        return self.controller.next_budget(max(room, 0))

    async def _verify(self, draft: Draft, times: RoundTimes, parent: Span) -> Verification:
        """Gets the verdict and records in `times` how long it took, and whether it was retried."""
        asked_ns, reopened = time.perf_counter_ns(), self.verifier.reopened
        with parent.child("verify") as span:
            answer = await self.verifier.verify(self.committed, draft.tree)
            accepted = len(answer.verdict.accepted_nodes)
            span.set_attributes(accepted=accepted, **answer.timings.attributes())
        times.verify_ns = time.perf_counter_ns() - asked_ns
        times.reopened = self.verifier.reopened > reopened
        self.timings.observe_verify(times, answer.timings)
        return answer

    def _commit(self, tree: DraftTree, verdict: Verdict, end: DraftEnd = DraftEnd.NONE) -> Piece:
        """Makes the verdict's tokens final, up to the first one that ends the output."""
        kept_tokens: list[int] = []
        texts: list[str] = []
        for token in verdict.emitted_token_ids:
            kept_tokens.append(token)
            self.committed.append(token)
            if self.text.has_stop_texts:
                texts.append(self.text.push([token]))
            self.finish_reason = self._finish_reason_after(token)
            if self.finish_reason:
                break
        if self.finish_reason and self.text.has_stop_texts:
            texts[-1] += self.text.finish()
            if self.text.stopped:
                self.finish_reason = STOP
        return Piece(
            token_ids=tuple(kept_tokens),
            sources=tuple(verdict.emitted_sources(tree)[: len(kept_tokens)]),
            decode_texts=self._text_decoder(kept_tokens, texts),
            logprobs=verdict.logprobs[: len(kept_tokens)],
            draft=tree,
            accepted_nodes=verdict.accepted_nodes,
            draft_end=end,
        )

    def _text_decoder(self, kept: list[int], texts: list[str]) -> Callable[[], tuple[str, ...]]:
        """A function that returns the text of each kept token.

        Decoding is deferred until that function is called. If there are stop texts, the tokens had
        to be decoded already, into `texts`.
        """
        if self.text.has_stop_texts:
            return lambda: tuple(texts)
        return self.text.defer(kept, is_last=self.finish_reason is not None)

    def _finish_reason_after(self, token: int) -> str | None:
        if token in self.request.stop_token_ids or self.text.stopped:
            return STOP
        context_is_full = len(self.committed) >= self.context_length
        return LENGTH if context_is_full or self.output_length >= self.request.max_tokens else None

    def _learn(self, draft: Draft, answer: Verification, piece: Piece, times: RoundTimes) -> None:
        kept = len(piece.token_ids)
        self.timings.observe_round(times.round_ns, draft, answer)
        if times.reopened:  # such a round says nothing about drafts or about the pace
            self.figures.reopened_sessions = self.verifier.reopened
            self.controller.limit(self.verifier.max_draft_nodes)
        # Decoding, pricing, metrics and harvesting run while the next round waits for a service.
        before = len(self.committed) - kept
        context = self.committed[max(0, before - MAX_CONTEXT) : before]
        loop = asyncio.get_running_loop()
        loop.call_soon(piece.decode_texts)
        if not times.reopened:
            loop.call_soon(self._price, draft, answer, kept, times)
        loop.call_soon(self.figures.observe, draft, answer.verdict, kept)
        loop.call_soon(self.meter.record_round, draft, answer, kept, times)
        loop.call_soon(self.drafting.learn, context, draft.tree, answer.verdict)

    def _price(self, draft: Draft, answer: Verification, kept: int, times: RoundTimes) -> None:
        """Updates the costs of drafts and verification, and the pace in tokens per second."""
        timings, used_draft_model = answer.timings, draft.timings.forwards > 0
        without_draft_ns = times.round_ns - times.draft_ns
        cost, nodes = self.controller.verify_cost, len(draft.tree)
        cost.follow(self.verifier.cost_curve)
        # Not for a shared round: other sessions' work is not the draft's.
        if used_draft_model and not cost.is_shared(timings):
            self.drafting.observe_delay(without_draft_ns - cost.nanoseconds(nodes))
        by_choice = self.request.strategy != AUTOREGRESSIVE
        cost.observe(nodes, without_draft_ns, timings, by_choice=by_choice)
        # How long the round waited for a drafter in vain says nothing about the pace.
        round_ns = without_draft_ns if times.fell_back else times.round_ns
        self.controller.observe(nodes, kept, round_ns, used_draft_model=used_draft_model)

    async def _close(self) -> None:
        if self._indexing is not None:
            self._indexing.cancel()
        await asyncio.gather(self.verifier.close(), self.drafting.close())
