"""The services behind this orchestrator: who they are, whether they fit, new sessions on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import grpc

from draftloop import logs
from draftloop.calibrations import Calibrations
from draftloop.cost_line import cost_line
from draftloop.deadline import Deadline
from draftloop.errors import Mismatch, StartupFailure, Unavailable
from draftloop.model_info import ModelInfo
from draftloop.request import GenerationRequest
from draftloop.speculation import (
    AUTOREGRESSIVE,
    DRAFTER_STRATEGIES,
    FUSED,
    LOOKAHEAD,
    OUROBOROS,
    PROMPT_LOOKUP,
    TOKEN_RECYCLING,
)
from orchestrator.budget import Controller
from orchestrator.clients import drafter_info, verifier_info
from orchestrator.config import OrchestratorSettings
from orchestrator.costs import VerifyCost
from orchestrator.drafter_session import DrafterSession
from orchestrator.drafting import DrafterDrafting, Drafting, RecyclingDrafting
from orchestrator.figures import SpeculationFigures
from orchestrator.fused import FusedDrafting
from orchestrator.loop import Generation
from orchestrator.metrics import DEPLOYMENTS
from orchestrator.replicas import Replicas
from orchestrator.sources import LookaheadSource, PhraseSource
from orchestrator.terms import SessionTerms
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer
from orchestrator.verifier_session import VerifierSession
from phrase_store.session import PhraseSession
from phrase_store.store import DraftsFrom, PhraseStore, warm_up

LOOK_AGAIN_S = 0.5
INFO_TIMEOUT_S = 5.0
# Services correct their cost curves while they run; requests use those of so long ago at most.
REFRESH_S = 10.0
UNMEASURED_DRAFT_TOKEN_NS = 2_000_000.0

log = logs.get(__name__)


class Deployment:
    """Verifiers and drafters with a vocabulary in common."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self.settings = settings
        self.tokenizer = Tokenizer(settings.tokenizer)
        self.store = PhraseStore(settings)
        self._calibrations = Calibrations()
        size = settings.max_message_bytes
        self._verifiers = Replicas(settings.verifier_addresses, size)
        self._drafters = Replicas(settings.drafter_addresses, size)
        self._verifier: ModelInfo | None = None
        self._drafter: ModelInfo | None = None
        self._watch: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        DEPLOYMENTS.watch(self)

    @property
    def verifier(self) -> ModelInfo:
        """The target model. Raises Unavailable while none has answered."""
        if self._verifier is None:
            raise Unavailable("verifier: none has answered yet")
        return self._verifier

    @property
    def drafter(self) -> ModelInfo | None:
        """The draft model; None while no drafter has answered."""
        return self._drafter

    def replicas(self) -> dict[str, Replicas]:
        """Those of each role."""
        return {"verifier": self._verifiers, "drafter": self._drafters}

    async def start(self) -> None:
        """Waits for a verifier, looks once for a drafter, and goes on looking in the background.

        Raises StartupFailure where a service has another vocabulary or protocol.
        """
        if not len(self._verifiers):
            raise StartupFailure("verifiers: must name at least one address; got none")
        await asyncio.gather(asyncio.to_thread(warm_up), self._find_verifier())
        if len(self._drafters):
            await self._ask_drafter()
            if self._drafter is None:
                log.warning("no drafter yet", addresses=self.settings.drafters)
                self._watch = asyncio.create_task(self._watch_for_drafter())
        self._refreshing = asyncio.create_task(self._refresh())

    async def _find_verifier(self) -> None:
        while self._verifier is None:
            self._verifier = await self._ask_verifier()

    async def stop(self) -> None:
        """Closes all connections."""
        DEPLOYMENTS.forget(self)
        for task in (self._watch, self._refreshing):
            if task is not None:
                task.cancel()
        await self._verifiers.close()
        await self._drafters.close()
        await asyncio.to_thread(self.store.close)

    def generation(self, request: GenerationRequest, deadline: Deadline) -> Generation:
        """A checked request, ready to run until the deadline."""
        settings, info = self.settings, self.verifier
        controller, figures = self._controller(request), SpeculationFigures()
        return Generation(
            request=request,
            verifier=VerifierSession(
                self._verifiers,
                self._terms(request, settings.verify_timeout_s, deadline),
                reopen_for_s=settings.connect_timeout_s,
            ),
            drafting=self._drafting(request, deadline, controller, figures),
            controller=controller,
            text=TextStream(self.tokenizer, request.prompt, request.stop),
            context_length=info.context_length,
            figures=figures,
        )

    def _terms(
        self, request: GenerationRequest, answer_timeout_s: float, deadline: Deadline
    ) -> SessionTerms:
        return SessionTerms(
            request=request,
            vocabulary_fingerprint=self.tokenizer.fingerprint,
            answer_timeout_s=answer_timeout_s,
            deadline=deadline,
        )

    def _drafting(
        self,
        request: GenerationRequest,
        deadline: Deadline,
        controller: Controller,
        figures: SpeculationFigures,
    ) -> Drafting:
        strategy = request.strategy
        phrases = self._phrases(request)
        if strategy == AUTOREGRESSIVE:
            return Drafting(None, phrases)
        if strategy == LOOKAHEAD:
            source = LookaheadSource(request.speculation.lookahead, request.prompt)
            return Drafting(source, phrases)
        if strategy == PROMPT_LOOKUP:
            calibration = self._calibrations.of(request.sampling.temperature)
            own = PhraseSession(
                request.prompt,
                request.max_tokens,
                calibration=calibration,
                prediction=request.prediction,
            )
            return Drafting(PhraseSource(own, most_leaves=1), phrases)
        if strategy == TOKEN_RECYCLING:
            return RecyclingDrafting(PhraseSource(phrases) if phrases else None, phrases)
        drafter = DrafterSession(
            self._drafters,
            self._terms(request, self.settings.draft_timeout_s, deadline),
            target=self.verifier,
        )
        if strategy == FUSED:
            uses_model = request.speculation.fused.draft_model and len(self._drafters) > 0
            return FusedDrafting(
                phrases,
                drafter=drafter if uses_model else None,
                controller=controller,
                figures=figures,
            )
        return DrafterDrafting(
            PhraseSource(phrases) if phrases else None,
            phrases,
            drafter=drafter,
            controller=controller,
            figures=figures,
            prefers_phrases=strategy == OUROBOROS,
        )

    def _phrases(self, request: GenerationRequest) -> PhraseSession | None:
        """What the request may read, and write for others."""
        # Some strategies only teach: they draft from nothing here, or from an index of their own.
        reads = request.strategy in DRAFTER_STRATEGIES
        return self.store.session(
            request.access(self.verifier.model_fingerprint),
            request.prompt if reads else (),
            expected_tokens=request.max_tokens,
            publishes=True,
            harvests=request.speculation.ouroboros.harvest,
            stop_token_ids=request.stop_token_ids,
            calibration=self._calibrations.of(request.sampling.temperature),
            drafts_from=self._drafts_from(request),
            prediction=request.prediction if reads else (),
        )

    def _drafts_from(self, request: GenerationRequest) -> DraftsFrom:
        size = self.verifier.vocabulary_size if request.successors else 0
        if request.strategy == TOKEN_RECYCLING:
            return DraftsFrom(shared=False, own_text=False, recycles=size)
        if request.strategy == FUSED:
            sources = request.speculation.fused
            return DraftsFrom(shared=sources.phrases, own_text=sources.own_text, recycles=size)
        return DraftsFrom()

    def _controller(self, request: GenerationRequest) -> Controller:
        info, drafter = self.verifier, self._drafter
        context = len(request.prompt) + request.max_tokens // 2  # halfway through
        cost = 0.0
        if request.strategy in DRAFTER_STRATEGIES:
            curve = drafter.cost_curve if drafter is not None else ()
            cost = cost_line(curve, context).nanoseconds(1) if curve else UNMEASURED_DRAFT_TOKEN_NS
        limit = request.speculation.max_draft_tokens
        most = self.settings.max_draft_tokens
        if request.strategy == LOOKAHEAD:  # its parameters say how much
            most = request.speculation.lookahead.most_nodes
        return Controller(
            max_nodes=min(limit or most, info.max_draft_nodes),
            verify_cost=VerifyCost(info.cost_curve, context=context),
            draft_token_ns=cost,
            fixed=limit is not None,
            gated=request.strategy != FUSED,
        )

    async def _ask_verifier(self) -> ModelInfo | None:
        for replica in self._verifiers.by_preference():
            try:
                info = await verifier_info(replica.channel, INFO_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                log.info("waiting for a verifier", address=replica.address, reason=error.details())
                continue
            self._require_fit(info, "verifier", replica.address)
            return info
        await asyncio.sleep(LOOK_AGAIN_S)
        return None

    async def _ask_drafter(self) -> None:
        for replica in self._drafters.by_preference():
            try:
                info = await drafter_info(replica.channel, INFO_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                continue
            self._require_fit(info, "drafter", replica.address)
            self.verifier.require_same_vocabulary(info)
            self._drafter = info

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if self._verifier is not None:
                self._verifier = await _asked_again(self._verifiers, verifier_info, self._verifier)
            if self._drafter is not None:
                self._drafter = await _asked_again(self._drafters, drafter_info, self._drafter)

    def _require_fit(self, info: ModelInfo, role: str, address: str) -> None:
        info.require_protocol()
        if role == "verifier" and info.vocabulary_fingerprint != self.tokenizer.fingerprint:
            raise Mismatch(
                f"tokenizer: must be the target model's; {self.settings.tokenizer} has fingerprint "
                f"{self.tokenizer.fingerprint}, the verifier at {address} has "
                f"{info.vocabulary_fingerprint}"
            )

    async def _watch_for_drafter(self) -> None:
        while self._drafter is None:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                await self._ask_drafter()
            except Mismatch as error:
                log.error("drafter refused", reason=str(error))
                return
        log.info("drafter found", model=self._drafter.model_name)


async def _asked_again(
    replicas: Replicas,
    ask: Callable[[grpc.aio.Channel, float], Awaitable[ModelInfo]],
    known: ModelInfo,
) -> ModelInfo:
    """What the preferred replica says of itself now; what is known where it does not say it."""
    replica = replicas.by_preference()[0]
    # Quiet: who needs the service finds out by itself that it is gone.
    with contextlib.suppress(grpc.aio.AioRpcError):
        info = await ask(replica.channel, INFO_TIMEOUT_S)
        if info.model_fingerprint == known.model_fingerprint:
            return info
    return known
