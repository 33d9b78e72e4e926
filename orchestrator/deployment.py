"""Prepares requests to run: their sessions, drafting, phrases and budget."""

from __future__ import annotations

import asyncio

from draftloop.calibrations import Calibrations
from draftloop.cost_line import CostLine, cost_line
from draftloop.deadline import Deadline
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
from orchestrator.choice import DraftChoice, ModelChoice
from orchestrator.config import OrchestratorSettings
from orchestrator.costs import VerifyCost, VerifyOverhead
from orchestrator.drafter_session import DrafterSession
from orchestrator.drafting import Drafting, ModelDrafting
from orchestrator.figures import SpeculationFigures
from orchestrator.fused import FusedDrafting
from orchestrator.gains import Gain, Gains
from orchestrator.grammar_trials import GrammarTrials
from orchestrator.loop import Generation
from orchestrator.metrics import DEPLOYMENTS
from orchestrator.replicas import Replicas
from orchestrator.services import Services
from orchestrator.sources import LookaheadSource, PhraseSource
from orchestrator.terms import SessionTerms
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer
from orchestrator.verifier_load import VerifierLoad
from orchestrator.verifier_session import VerifierSession
from phrase_store.session import PhraseSession
from phrase_store.store import DraftsFrom, PhraseStore, warm_up

UNMEASURED_DRAFT_TOKEN_NS = 2_000_000.0
# If the target's forward of one token takes less than this, successors cost `fused` more than they
# bring (decision 42).
MIN_FORWARD_FOR_RECYCLING_NS = 8_000_000.0


class Deployment:
    """Verifiers and drafters with a common vocabulary, and what all requests share."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self.settings = settings
        self.tokenizer = Tokenizer(settings.tokenizer)
        self.grammars = GrammarTrials(settings.tokenizer, settings.max_requests)
        self.store = PhraseStore(settings)
        self._calibrations = Calibrations()
        self._gains = Gains()
        self._verify_overhead = VerifyOverhead()
        self._verifier_load = VerifierLoad()
        self._services = Services(settings, self.tokenizer.fingerprint)
        DEPLOYMENTS.watch(self)

    @property
    def verifier(self) -> ModelInfo:
        """The target model. Raises Unavailable while none has answered."""
        return self._services.verifier

    @property
    def drafter(self) -> ModelInfo | None:
        """The draft model; None while no drafter has answered."""
        return self._services.drafter

    @property
    def ready(self) -> bool:
        """Whether a verifier takes new sessions now."""
        return len(self._services.verifiers) > 0

    def replicas(self) -> dict[str, Replicas]:
        """The replicas of each role."""
        return {"verifier": self._services.verifiers, "drafter": self._services.drafters}

    async def start(self) -> None:
        """Waits for a verifier, looks once for drafters, and follows both in the background.

        Raises StartupFailure if no address is given, and Mismatch if the services that answered
        have another vocabulary or protocol.
        """
        await asyncio.gather(asyncio.to_thread(warm_up), self._services.start())

    async def stop(self) -> None:
        """Closes all connections and the phrase store."""
        DEPLOYMENTS.forget(self)
        await self.grammars.close()
        await self._services.stop()
        await asyncio.to_thread(self.store.close)

    def generation(self, request: GenerationRequest, deadline: Deadline) -> Generation:
        """A checked request, ready to run until the deadline."""
        settings, info = self.settings, self.verifier
        request = self._drop_unprofitable_recycling(request)
        controller, figures = self._controller(request), SpeculationFigures()
        return Generation(
            request=request,
            verifier=VerifierSession(
                self._services.verifiers,
                self._session_terms(request, settings.verify_timeout_s, deadline),
                reopen_for_s=settings.connect_timeout_s,
            ),
            drafting=self._drafting(request, deadline, controller, figures),
            controller=controller,
            text=TextStream(
                self.tokenizer,
                request.prompt,
                request.stop,
                request.text_form,
                stop_token_ids=request.stop_token_ids,
                min_tokens=request.min_tokens,
            ),
            context_length=info.context_length,
            deadline=deadline,
            figures=figures,
        )

    def _drop_unprofitable_recycling(self, request: GenerationRequest) -> GenerationRequest:
        """Drops successors if the target's forwards are short and the draft size is not fixed."""
        if request.strategy != FUSED or request.speculation.max_draft_tokens is not None:
            return request
        costs = cost_line(self.verifier.cost_curve, _expected_context(request))
        short = costs.rows and costs.nanoseconds(1) < MIN_FORWARD_FOR_RECYCLING_NS
        return request.without_recycling() if short else request

    def _session_terms(
        self, request: GenerationRequest, answer_timeout_s: float, deadline: Deadline
    ) -> SessionTerms:
        return SessionTerms(
            request=request,
            vocabulary_fingerprint=self.tokenizer.fingerprint,
            target=self.verifier,
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
        if strategy not in DRAFTER_STRATEGIES:
            gain = self._gain(request, draft_token_ns=0.0)
            return self._draft_without_model_service(
                request, phrases, DraftChoice(controller, gain)
            )
        draft_costs = self._draft_costs(request)
        choice = ModelChoice(
            controller,
            self._gain(
                request,
                draft_costs.nanoseconds(1) if draft_costs.rows else UNMEASURED_DRAFT_TOKEN_NS,
            ),
            drafter=DrafterSession(
                self._services.drafters,
                self._session_terms(request, self.settings.draft_timeout_s, deadline),
            ),
            costs=draft_costs,
            tokens_left=request.expected_remaining,
        )
        if strategy == FUSED:
            configured = bool(self.settings.drafter_addresses)
            uses_model = request.speculation.fused.draft_model and configured
            return FusedDrafting(
                phrases, choice if uses_model else None, controller=controller, figures=figures
            )
        return ModelDrafting(
            PhraseSource(phrases) if phrases else None,
            phrases,
            choice,
            controller=controller,
            figures=figures,
            always_offers=strategy == OUROBOROS and request.speculation.ouroboros.phrases_alone,
        )

    def _draft_without_model_service(
        self, request: GenerationRequest, phrases: PhraseSession | None, choice: DraftChoice
    ) -> Drafting:
        """For the strategies without a draft model."""
        if request.strategy == LOOKAHEAD:
            source = LookaheadSource(
                request.speculation.lookahead, request.prompt, request.stop_token_ids
            )
            return Drafting(source, phrases, choice)
        if request.strategy == TOKEN_RECYCLING:
            return Drafting(PhraseSource(phrases) if phrases else None, phrases, choice)
        assert request.strategy == PROMPT_LOOKUP, request.strategy
        # An index of its own: it holds only this request's text.
        own_text = PhraseSession(
            request.prompt,
            request.expected_remaining(len(request.prompt)),
            stop_token_ids=request.stop_token_ids,
            calibration=self._calibrations.of(request.sampling.temperature),
            prediction=request.prediction,
        )
        return Drafting(PhraseSource(own_text, max_leaves=1), phrases, choice)

    def _phrases(self, request: GenerationRequest) -> PhraseSession | None:
        """The phrases that the request reads, and writes for others."""
        return self.store.session(
            request.access(self.verifier.model_fingerprint),
            request.prompt,
            vocabulary_size=self.verifier.vocabulary_size,
            expected_tokens=request.expected_remaining(len(request.prompt)),
            publishes=True,
            harvests=request.speculation.ouroboros.harvest,
            stop_token_ids=request.stop_token_ids,
            calibration=self._calibrations.of(request.sampling.temperature),
            drafts_from=_drafts_from(request),
            prediction=request.prediction,
        )

    def _draft_costs(self, request: GenerationRequest) -> CostLine:
        """Time of the draft model's forwards at the request's expected average context length.

        Empty while no drafter has answered.
        """
        curve = self.drafter.cost_curve if self.drafter is not None else ()
        return cost_line(curve, _expected_context(request))

    def _gain(self, request: GenerationRequest, draft_token_ns: float) -> Gain:
        """What drafts bring; the first guess is made from the time of a draft forward."""
        method, temperature = request.speculation.method, request.sampling.temperature
        return self._gains.of(method, temperature, draft_token_ns)

    def _controller(self, request: GenerationRequest) -> Controller:
        info = self.verifier
        speculation = request.speculation
        limit = speculation.max_draft_tokens
        default_max_nodes = (
            speculation.max_nodes_of(request.strategy) or self.settings.max_draft_tokens
        )
        return Controller(
            max_nodes=min(limit or default_max_nodes, info.max_draft_nodes),
            verify_cost=VerifyCost(
                info.cost_curve,
                context=_expected_context(request),
                shared_overhead=self._verify_overhead,
                load=self._verifier_load,
            ),
            fixed=limit is not None,
            verify_uncut=speculation.max_nodes_of(request.strategy) is not None,
            drafter_shares_processor=self.drafter is not None
            and self.drafter.shares_processor(info),
            shared_pace=self._gains.pace_of(speculation.method, request.sampling.temperature),
        )


def _drafts_from(request: GenerationRequest) -> DraftsFrom:
    if request.strategy == TOKEN_RECYCLING:
        return DraftsFrom(shared=False, own_text=False, recycles=True)
    if request.strategy == FUSED:
        sources = request.speculation.fused
        return DraftsFrom(
            shared=sources.phrases, own_text=sources.own_text, recycles=sources.recycling
        )
    # Other strategies only write phrases: they draft nothing here, or from an index of their own.
    reads = request.strategy in DRAFTER_STRATEGIES
    return DraftsFrom(shared=reads, own_text=reads)


def _expected_context(request: GenerationRequest) -> int:
    """Tokens in the request's text halfway through its expected output."""
    prompt_length = len(request.prompt)
    return prompt_length + request.expected_remaining(prompt_length) // 2
