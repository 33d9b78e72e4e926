"""Our services in one process and in virtual time: the same loop, models and drafts, no noise.

Forwards take what a cost curve says, exchanges and planning what is given; nothing else takes
time. So two policies are compared by what they decide, on the costs of any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar
from unittest import mock

import torch

import drafter_service.strategies.cascade
import drafter_service.strategies.chain
import drafter_service.strategies.tree
import orchestrator.deployment
import orchestrator.drafting
import orchestrator.fused
import orchestrator.loop
from drafter_service import session as drafter
from drafter_service.strategies import STRATEGIES
from draftloop.calibrations import Calibrations
from draftloop.config import bundled_model
from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint, ModelInfo
from draftloop.request import GenerationRequest
from draftloop.runtime.cost_curve import CostCurve
from draftloop.runtime.forward import Task
from draftloop.runtime.model import LanguageModel, ModelOptions
from draftloop.speculation import OUROBOROS
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
from phrase_store.config import PhraseSettings
from phrase_store.session import PhraseSession
from phrase_store.store import PhraseStore
from verifier_service import session as verifier
from verifier_service.round import verify

T = TypeVar("T")

# Every module that asks for the time while a request runs.
TIMED: tuple[ModuleType, ...] = (
    orchestrator.loop,
    orchestrator.drafting,
    orchestrator.fused,
    drafter_service.strategies.chain,
    drafter_service.strategies.tree,
    drafter_service.strategies.cascade,
)
CHUNK_TOKENS = 256
NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Milliseconds beside the forwards: of each verification, draft, draft forward and plan."""

    verify: float = 2.5
    draft: float = 1.5
    forward: float = 0.4
    plan: float = 0.15


class Clock:
    """What the modules of `TIMED` take for `time`; it stands still but for `advance`."""

    def __init__(self) -> None:
        self._now_ns = 0

    def perf_counter_ns(self) -> int:
        """Nanoseconds since the beginning."""
        return self._now_ns

    def perf_counter(self) -> float:
        """Seconds since the beginning."""
        return self._now_ns / 1e9

    def advance(self, nanoseconds: float) -> None:
        """Lets so much time pass."""
        self._now_ns += int(nanoseconds)


class GivenCurve(CostCurve):
    """A curve that the forwards of this process do not correct."""

    def observe(self, rows: int, context: int, batch: int, nanoseconds: int) -> None:
        """Learns nothing."""


def points_of(profile: Mapping[str, Any], role: str) -> tuple[CostPoint, ...]:
    """A role's cost curve in the results of a benchmark."""
    known = profile[role]["forward_ms_by_tokens"].items()
    return tuple(CostPoint(int(tokens), int(NS_PER_MS * ms)) for tokens, ms in known)


def own_log() -> str:
    """A phrase log that nobody else in this process writes to, as each role has one by default."""
    return f"memory://{uuid.uuid4().hex}"


class World:
    """The bundled pair at the costs of a profile, a clock, and what the drafter's process keeps."""

    def __init__(self, pair: Mapping[str, LanguageModel], around: Around) -> None:
        self.target, self.draft = pair["verifier"], pair["drafter"]
        self.around = around
        self.clock = Clock()
        self.store = PhraseStore(PhraseSettings(phrases_url=own_log()))
        self.calibrations, self.reviews = Calibrations(), Calibrations()
        self._lines: dict[LanguageModel, CostLine] = {}

    def cost(self, model: LanguageModel, curve: tuple[CostPoint, ...]) -> None:
        """From now on forwards of `model` take what `curve` says."""
        model.costs = GivenCurve(curve)
        self._lines[model] = cost_line(curve)

    @torch.inference_mode()
    def run(self, task: Task[T], timings: ServiceTimings | None, around_ms: float = 0.0) -> T:
        """The task's result; each of its forwards takes `around_ms` longer than its curve says.

        Without timings it takes no time at all.
        """
        try:
            wish = next(task)
            while True:
                (logits,) = wish.model.forward([wish])
                if timings is not None:
                    taken = int(self._lines[wish.model].nanoseconds(wish.rows))
                    self.clock.advance(taken + NS_PER_MS * around_ms)
                    timings.forward_ns += taken
                    timings.forwards += 1
                wish = task.send(logits)
        except StopIteration as done:
            result: T = done.value
            return result

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Deployments made inside have their sessions here, and everything its time from here."""
        around = NS_PER_MS * self.around.plan

        def propose(session: PhraseSession, *said: Any, **options: Any) -> DraftTree:
            self.clock.advance(around)
            return plan(session, *said, **options)

        plan = PhraseSession.propose
        with contextlib.ExitStack() as stack:
            for module in TIMED:
                stack.enter_context(mock.patch.object(module, "time", self.clock))
            stack.enter_context(mock.patch.object(PhraseSession, "propose", propose))
            made = {"VerifierSession": VerifierSession, "DrafterSession": DrafterSession}
            for name, kind in made.items():
                bound = _bound(kind, self)
                stack.enter_context(mock.patch.object(orchestrator.deployment, name, bound))
            services = mock.Mock(return_value=_Services(self))
            stack.enter_context(mock.patch.object(orchestrator.deployment, "Services", services))
            yield
        self.store.close()


def _bound(kind: Any, world: World) -> Any:
    def made(replicas: object, terms: SessionTerms, **_: object) -> Any:
        return kind(world, terms.request)

    return made


class _Services:
    """Both models as a deployment knows them."""

    def __init__(self, world: World) -> None:
        self.verifier: ModelInfo = world.target.info()
        self.drafter: ModelInfo = world.draft.info(strategies=list(STRATEGIES))
        self.verifiers: Sequence[object] = ()
        self.drafters: Sequence[object] = ()


class VerifierSession:
    """As `orchestrator.verifier_session` has it, without a wire."""

    def __init__(self, world: World, request: GenerationRequest) -> None:
        self._world = world
        self._slot = world.target.acquire()
        asked = verifier.SessionRequest(
            session_id=request.request_id,
            token_ids=request.prompt,
            prompt_length=len(request.prompt),
            sampling=request.sampling,
            stop_token_ids=request.stop_token_ids,
            successors=request.successors,
        )
        self._session = verifier.VerifierSession(world.target, self._slot, asked)
        self.reopened = 0

    async def open(self, committed: Sequence[int]) -> Verification:
        """The first token."""
        return await self.verify(committed, EMPTY_TREE)

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        """The verdict on `draft`."""
        await asyncio.sleep(0)  # what waits for a quiet moment gets it
        world, timings = self._world, ServiceTimings()
        task = verify(self._session, draft, chunk_tokens=CHUNK_TOKENS)
        verdict = world.run(task, timings)
        world.clock.advance(NS_PER_MS * world.around.verify)
        return Verification(verdict=verdict, committed_length=len(committed), timings=timings)

    async def close(self) -> None:
        """Frees the slot."""
        self._world.target.cache.release(self._slot)


class DrafterSession:
    """As `orchestrator.drafter_session` has it, without a wire."""

    def __init__(self, world: World, request: GenerationRequest) -> None:
        self._world, self._request = world, request
        self._slot = world.draft.acquire()
        self._strategy: Any = None

    @property
    def asked_for(self) -> bool:
        """Whether it is open."""
        return self._strategy is not None

    def open(self, committed: Sequence[int]) -> None:
        """Prefills, beside everything else and in no time."""
        world, request = self._world, self._request
        parts = request.speculation
        asked = drafter.SessionRequest(
            session_id=request.request_id,
            token_ids=tuple(committed),
            prompt_length=len(request.prompt),
            sampling=request.sampling,
            strategy=request.strategy,
            access=request.access(""),
            ouroboros=parts.ouroboros,
            opt_tree=parts.opt_tree,
            cascade=parts.cascade,
        )
        calibration = world.calibrations.of(request.sampling.temperature)
        phrases = None
        if request.strategy == OUROBOROS:
            phrases = world.store.session(
                asked.access,
                asked.token_ids,
                publishes=False,
                harvests=parts.ouroboros.harvest,
                stop_token_ids=world.draft.stop_token_ids,
                calibration=calibration,
            )
        session = drafter.DrafterSession(
            world.draft,
            self._slot,
            asked,
            CHUNK_TOKENS,
            calibration=calibration,
            reviews=world.reviews.of(request.sampling.temperature),
            phrases=phrases,
        )
        self._strategy = STRATEGIES[request.strategy](session)
        world.run(self._strategy.prefill(), None)

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree = EMPTY_TREE,
    ) -> Draft:
        """A draft within the budget."""
        await asyncio.sleep(0)
        world, strategy, timings = self._world, self._strategy, ServiceTimings()
        new = committed[len(strategy.session.committed) :]
        strategy.session.commit(new, len(committed))
        strategy.observe(new, verdict)
        strategy.offer(offer)
        tree = world.run(strategy.propose(budget), timings, world.around.forward)
        world.clock.advance(NS_PER_MS * world.around.draft)
        proposed = {TokenSource.DRAFT_MODEL: strategy.proposed_nodes}
        return Draft(
            tree=tree,
            committed_length=len(committed),
            timings=timings,
            proposed=proposed,
            end=strategy.end,
        )

    async def close(self) -> None:
        """Frees the slot."""
        self._world.draft.cache.release(self._slot)


def bundled_pair(threads: int) -> dict[str, LanguageModel]:
    """The bundled models, loaded in this process, in float32."""
    return {
        role: LanguageModel(ModelOptions(folder=bundled_model(role), threads=threads))
        for role in ("verifier", "drafter")
    }
