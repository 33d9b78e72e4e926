"""Sessions of the model services without a wire, for deployments in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import drafter_service.strategies.cascade
import drafter_service.strategies.fused
import drafter_service.strategies.ouroboros
import drafter_service.strategies.tree
import orchestrator.deployment
import orchestrator.drafting
import orchestrator.loop
from benchmarks.virtual import NS_PER_MS, World
from drafter_service import session as drafter
from drafter_service.strategies import STRATEGIES
from draftloop.errors import Unavailable
from draftloop.model_info import ModelInfo
from draftloop.request import GenerationRequest
from draftloop.runtime.kv_cache import Slot
from draftloop.speculation import WITH_SMALLER_MODELS
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftTree,
    ServiceTimings,
    TokenSource,
    Verdict,
    Verification,
)
from orchestrator.terms import SessionTerms
from phrase_store.session import PhraseSession
from verifier_service import session as verifier
from verifier_service.round import verify

# Every module that reads the time while a request runs.
TIMED: tuple[ModuleType, ...] = (
    orchestrator.loop,
    orchestrator.drafting,
    drafter_service.strategies.fused,
    drafter_service.strategies.ouroboros,
    drafter_service.strategies.tree,
    drafter_service.strategies.cascade,
)
CHUNK_TOKENS = 256


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Within the context, deployments use this module's sessions and the world's clock."""
    around = NS_PER_MS * world.around.plan

    def propose(session: PhraseSession, *arguments: Any, **options: Any) -> DraftTree:
        world.clock.advance(around)
        return plan(session, *arguments, **options)

    plan = PhraseSession.propose
    with contextlib.ExitStack() as stack:
        for module in TIMED:
            stack.enter_context(mock.patch.object(module, "time", world.clock))
        stack.enter_context(mock.patch.object(PhraseSession, "propose", propose))
        made = {"VerifierSession": VerifierSession, "DrafterSession": DrafterSession}
        for name, kind in made.items():
            bound = _bound(kind, world)
            stack.enter_context(mock.patch.object(orchestrator.deployment, name, bound))
        services = mock.Mock(return_value=_Services(world))
        stack.enter_context(mock.patch.object(orchestrator.deployment, "Services", services))
        yield
    world.shared.store.close()


def _bound(kind: Any, world: World) -> Any:
    def made(replicas: object, terms: SessionTerms, **_: object) -> Any:
        return kind(world, terms.request)

    return made


class _Services:
    """Both models as a deployment sees them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._verifier = world.target.info()
        self._drafter = world.draft.info(strategies=list(STRATEGIES))
        self.verifiers: Sequence[object] = ()
        self.drafters: Sequence[object] = ()

    @property
    def verifier(self) -> ModelInfo:
        """The target, with its present costs."""
        return dataclasses.replace(self._verifier, cost_curve=self._world.target.cost_curve)

    @property
    def drafter(self) -> ModelInfo:
        """The draft model, with its present costs."""
        return dataclasses.replace(self._drafter, cost_curve=self._world.draft.cost_curve)


class VerifierSession:
    """Like `orchestrator.verifier_session`, but without a wire."""

    def __init__(self, world: World, request: GenerationRequest) -> None:
        self._world = world
        self._slot = world.target.acquire()
        session_request = verifier.SessionRequest(
            session_id=request.request_id,
            token_ids=request.prompt,
            prompt_length=len(request.prompt),
            sampling=request.sampling,
            stop_token_ids=request.stop_token_ids,
            successors=request.successors,
        )
        self._session = verifier.VerifierSession(world.target, self._slot, session_request)
        self.context_length = world.target.context_length
        self.cost_curve = world.target.cost_curve
        self.reopened = 0

    async def open(self, committed: Sequence[int]) -> Verification:
        """The verification that gives the first token."""
        return await self.verify(committed, EMPTY_TREE)

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        """The verdict on `draft`."""
        await asyncio.sleep(0)  # lets work that waits for an idle event loop run
        world, timings = self._world, ServiceTimings()
        task = verify(self._session, draft, chunk_tokens=CHUNK_TOKENS)
        verdict = world.run(task, timings)
        world.clock.advance(NS_PER_MS * world.around.verify)
        return Verification(verdict=verdict, committed_length=len(committed), timings=timings)

    async def close(self) -> None:
        """Frees the slot."""
        self._world.target.cache.release(self._slot)


class DrafterSession:
    """Like `orchestrator.drafter_session`, but without a wire."""

    def __init__(self, world: World, request: GenerationRequest) -> None:
        self._world, self._request = world, request
        self._slots: list[Slot] = []
        self._strategy: Any = None
        self._answered_ns = self._ready_ns = 0
        self._waits_ns = 0.0

    @property
    def is_requested(self) -> bool:
        """Whether it is open."""
        return self._strategy is not None

    @property
    def is_ready(self) -> bool:
        """Whether it has prefilled."""
        return self._ready_ns <= self._world.clock.perf_counter_ns()

    @property
    def is_due(self) -> bool:
        """Whether it has prefilled, or will have so soon that a round waits for it."""
        return self._ready_ns - self._world.clock.perf_counter_ns() <= self._waits_ns

    def can_serve(self, committed: Sequence[int]) -> bool:
        """Always true: prompts are shorter than the draft model's context here."""
        return True

    def tokens_to_prefill(self, committed: Sequence[int]) -> int:
        """Number of tokens to compute: all of them, since sessions share nothing here."""
        return len(committed)

    def open(self, committed: Sequence[int], max_wait_s: float | None = None) -> None:
        """Prefills in parallel with everything else."""
        world, request = self._world, self._request
        parts = request.speculation
        takes_all = request.strategy in WITH_SMALLER_MODELS
        models = [world.draft, *(world.smaller if takes_all else ())]
        self._slots = [model.acquire() for model in models]
        session_request = drafter.SessionRequest(
            session_id=request.request_id,
            token_ids=tuple(committed),
            prompt_length=len(request.prompt),
            sampling=request.sampling,
            stop_token_ids=request.stop_token_ids,
            strategy=request.strategy,
            access=request.access(""),
            ouroboros=parts.ouroboros,
            opt_tree=parts.opt_tree,
            cascade=parts.cascade,
        )
        self._strategy = world.shared.strategy(
            session_request,
            list(zip(models, self._slots, strict=True)),
            prefill_chunk_tokens=CHUNK_TOKENS,
            is_alone=lambda: False,
        )
        now = world.clock.perf_counter_ns()
        self._ready_ns = world.run_beside(self._strategy.prefill(), ServiceTimings(), now)
        self._waits_ns = math.inf if max_wait_s is None else 1e9 * max_wait_s

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree = EMPTY_TREE,
    ) -> Draft:
        """A draft within the budget. Raises Unavailable if the session had to be opened first."""
        await asyncio.sleep(0)
        if self._strategy is None:
            self.open(committed)
            raise Unavailable("drafter: no session is open")
        world, strategy = self._world, self._strategy
        world.clock.set_to(max(self._ready_ns, world.clock.perf_counter_ns()))
        around = world.around
        ahead = world.meanwhile(strategy, self._answered_ns, around.forward)
        timings = ServiceTimings(forwards=ahead)
        new = committed[len(strategy.session.committed) :]
        strategy.session.commit(new, len(committed))
        strategy.observe(new, verdict)
        strategy.offer(offer)
        tree = world.run(strategy.propose(budget), timings, around.forward)
        world.clock.advance(NS_PER_MS * around.draft)
        self._answered_ns = world.clock.perf_counter_ns()
        proposed = {TokenSource.DRAFT_MODEL: strategy.proposed_nodes}
        return Draft(
            tree=tree,
            committed_length=len(committed),
            timings=timings,
            proposed=proposed,
            end=strategy.end,
        )

    async def close(self) -> None:
        """Frees the slots, if there are any."""
        for slot in self._slots:
            slot.cache.release(slot)
