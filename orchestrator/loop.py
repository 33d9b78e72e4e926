"""One request from prompt to last token: draft, verify, commit, again.

The file to read first. The loop owns the truth: services propose and check, only what is committed
here is final, and everything can be rebuilt from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from draftloop.errors import Unavailable
from draftloop.prompt_lookup import PromptIndex
from draftloop.request import GenerationRequest
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftTree,
    TokenSource,
    Verdict,
    Verification,
)
from orchestrator.budget import NO_DRAFT, Controller
from orchestrator.clients import DrafterSession, VerifierSession
from orchestrator.figures import Piece, SpeculationFigures, Timings
from orchestrator.strategies import AUTOREGRESSIVE
from orchestrator.text import TextStream

STOP, LENGTH = "stop", "length"


@dataclass(slots=True, kw_only=True)
class Generation:
    """A request under way. `committed` is prompt and output; it only ever grows."""

    request: GenerationRequest
    verifier: VerifierSession
    drafter: DrafterSession
    controller: Controller
    text: TextStream
    context_length: int
    committed: list[int] = field(init=False)
    figures: SpeculationFigures = field(default_factory=SpeculationFigures)
    timings: Timings = field(default_factory=Timings)
    finish_reason: str | None = None
    _index: PromptIndex | None = None

    def __post_init__(self) -> None:
        self.committed = list(self.request.prompt)

    async def run(self) -> AsyncGenerator[Piece, None]:
        """Yields what was committed, round by round; `finish_reason` is set when it ends."""
        started = time.perf_counter_ns()
        try:
            first = await self._open()
            self.timings.time_to_first_token_ns = time.perf_counter_ns() - started
            yield self._commit(EMPTY_TREE, first.verdict)
            verdict: Verdict | None = None
            decoding = ended = time.perf_counter_ns()
            while self.finish_reason is None:
                draft = await self._draft(verdict)
                answer = await self._verify(draft)
                verdict = answer.verdict
                piece = self._commit(draft.tree, verdict)
                began, ended = ended, time.perf_counter_ns()
                self._learn(draft, answer, len(piece.token_ids), ended - began)
                self.timings.decode_ns = ended - decoding
                yield piece
        finally:
            await asyncio.shield(self._close())

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.committed[len(self.request.prompt) :]

    async def _open(self) -> Verification:
        """Both prefill at once; the verifier's answer holds the first token."""
        if self.request.strategy == AUTOREGRESSIVE:
            return await self.verifier.open(self.committed)
        opening = asyncio.create_task(self._open_drafter())
        try:
            return await self.verifier.open(self.committed)
        finally:
            await opening

    async def _open_drafter(self) -> None:
        try:
            await self.drafter.open(self.committed)
        except Unavailable:
            return  # the first round tries again or goes without

    async def _draft(self, verdict: Verdict | None) -> Draft:
        """The drafter's tree, or what this side can think of when the drafter is gone."""
        budget = self._budget()
        if not budget.max_nodes:
            return self._own_draft(EMPTY_TREE)
        asked = time.perf_counter_ns()
        try:
            draft = await self.drafter.propose(self.committed, verdict, budget)
        except Unavailable:
            self.figures.fallback_rounds += 1
            return self._own_draft(self._lookup(budget))
        waited = time.perf_counter_ns() - asked
        self.timings.observe_draft(waited, draft.timings)
        self.figures.draft_forwards += draft.timings.forwards
        if draft.timings.forwards:
            self.controller.observe_draft_cost(draft.timings.forwards, waited)
        return draft

    def _budget(self) -> DraftBudget:
        if self.request.strategy == AUTOREGRESSIVE:
            return NO_DRAFT
        left = self.request.max_tokens - len(self.output)
        room = min(left, self.context_length - len(self.committed)) - 1
        return self.controller.next_budget(max(room, 0))

    def _own_draft(self, tree: DraftTree) -> Draft:
        return Draft(tree=tree, committed_length=len(self.committed))

    def _lookup(self, budget: DraftBudget) -> DraftTree:
        if self._index is None:
            self._index = PromptIndex()
            self._index.extend(self.committed)
        return self._index.propose(min(budget.max_nodes, budget.max_depth))

    async def _verify(self, draft: Draft) -> Verification:
        asked = time.perf_counter_ns()
        answer = await self.verifier.verify(self.committed, draft.tree)
        waited = time.perf_counter_ns() - asked
        self.timings.observe_verify(waited, answer.timings)
        self.figures.reopened_sessions = self.verifier.reopened
        self.controller.verify_cost.observe(len(draft.tree), waited)
        return answer

    def _commit(self, tree: DraftTree, verdict: Verdict) -> Piece:
        """Makes the verdict's tokens final, up to the first reason to end."""
        sources = verdict.emitted_sources(tree) if len(tree) else []
        kept: list[int] = []
        pieces: list[str] = []
        for token in verdict.emitted_token_ids:
            kept.append(token)
            self.committed.append(token)
            pieces.append(self.text.push([token]))
            self.finish_reason = self._reason_to_end(token)
            if self.finish_reason:
                pieces.append(self.text.finish())
                break
        if self._index is not None:
            self._index.extend(kept)
        origins = (sources or [TokenSource.TARGET] * len(kept))[: len(kept)]
        return Piece(tuple(kept), tuple(origins), "".join(pieces))

    def _reason_to_end(self, token: int) -> str | None:
        if token in self.request.stop_token_ids or self.text.stopped:
            return STOP
        full = len(self.committed) >= self.context_length
        return LENGTH if full or len(self.output) >= self.request.max_tokens else None

    def _learn(self, draft: Draft, answer: Verification, kept: int, round_ns: int) -> None:
        # After a reopened session the verdict is about no draft at all.
        accepted = len(answer.verdict.accepted_nodes)
        self.figures.observe(draft.tree, min(accepted, kept), kept)
        self.timings.observe_round(round_ns, draft, answer)
        if len(draft.tree):
            self.controller.observe(len(draft.tree), accepted)

    async def _close(self) -> None:
        await asyncio.gather(self.verifier.close(), self.drafter.close())
