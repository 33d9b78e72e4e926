"""The drafter's gRPC service: answers streams with drafts; forwards run on the engine's thread."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc

from drafter_service.ahead import Ahead
from drafter_service.config import DrafterSettings
from drafter_service.session import SessionRequest
from drafter_service.shared import StrategyFactory
from drafter_service.strategies import Strategy
from draftloop import logs, tracing
from draftloop.errors import InvalidInput
from draftloop.pieces import run_in_pieces
from draftloop.rpc import convert
from draftloop.rpc.convert_speculation import (
    access_from_pb,
    cascade_from_pb,
    opt_tree_from_pb,
    ouroboros_from_pb,
)
from draftloop.rpc.sessions import (
    next_message,
    opening_fields,
    require_open,
    require_vocabulary,
)
from draftloop.runtime.metrics import PREFILL_TOKENS, observe_opening
from draftloop.runtime.service import ModelHost
from draftloop.speculation import CASCADE, WITH_SMALLER_MODELS
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftTree, ServiceTimings, Verdict
from phrase_store.store import PhraseStore
from protos import drafter_pb2 as pb
from protos import drafter_pb2_grpc

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Drafter"].full_name
register = drafter_pb2_grpc.add_DrafterServicer_to_server

# Pause between two pieces of a text being indexed, in which the engine's thread can have the GIL.
REST_S = 0.001

log = logs.get(__name__)


class DrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Implements `draftloop.v1.Drafter`."""

    def __init__(self, host: ModelHost, store: PhraseStore, settings: DrafterSettings) -> None:
        self._host = host
        self._shared = StrategyFactory(store, settings.draft_temperature)
        self._settings = settings

    async def Info(
        self, request: pb.DrafterInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrafterInfoResponse:
        """Model, strategies, limits and load."""
        return pb.DrafterInfoResponse(
            model=convert.model_info_to_pb(self._host.info),
            load=convert.load_to_pb(self._host.load),
        )

    async def Draft(
        self, request_iterator: AsyncIterator[pb.DraftRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DraftResponse]:
        """One session; its slots are freed however the stream ends."""
        first = await next_message(request_iterator, self._settings.idle_timeout_s)
        if first is None:
            return
        request = self._read_open(first)
        takes_all = request.strategy in WITH_SMALLER_MODELS
        smaller = self._host.smaller_models if takes_all else []
        logs.bind_request(request.session_id)
        log.debug("session", committed=len(request.token_ids), strategy=request.strategy)
        with tracing.span("drafter.session", context.invocation_metadata() or ()):
            await self._host.compile_grammar(request.sampling.grammar)
            text = self._host.text_of(request)
            async with self._host.admission.slots(smaller, text=text) as slots:
                slot = slots[0]
                PREFILL_TOKENS.inc(len(request.token_ids))
                strategy = self._shared.strategy(
                    request,
                    list(zip((self._host.model, *smaller), slots, strict=True)),
                    prefill_chunk_tokens=self._host.prefill_chunk_tokens,
                    is_alone=lambda: self._host.engine.is_alone,
                    ready_sampler=await request.ready_sampler(self._host.model),
                )
                prefilled = self._host.engine.submit_awaitable(
                    strategy.prefill(), session_slot=slot
                )
                drafts_ahead = self._drafts_ahead(first.open.target_processor)
                ahead = Ahead(self._host.engine, strategy, enabled=drafts_ahead)
                answers = self._answers(request_iterator, strategy, ahead)
                try:
                    await run_in_pieces(strategy.index_steps(), REST_S)
                    await prefilled
                    observe_opening(slot, len(request.token_ids))
                    yield self._ready(request)
                    async for answer in answers:
                        yield answer
                finally:  # else they would keep writing into slots that other sessions get
                    prefilled.cancel()
                    ahead.cancel()

    def _drafts_ahead(self, target_processor: str) -> bool:
        """Whether to draft while the target, on that processor, verifies the last draft."""
        if (wish := self._settings.draft_ahead) != "auto":
            return wish == "on"
        # The target may run on this machine's CPU even if its process has another id.
        is_shared = target_processor == self._host.info.processor
        return self._host.model.device.type != "cpu" and not is_shared

    async def _answers(
        self,
        messages: AsyncIterator[pb.DraftRequest],
        strategy: Strategy,
        ahead: Ahead,
    ) -> AsyncIterator[pb.DraftResponse]:
        """A draft for every proposal; a repeated message gets the stored answer again."""
        last_response: pb.DraftResponse | None = None
        last_request: pb.ProposeDraft | None = None
        while (message := await next_message(messages, self._settings.idle_timeout_s)) is not None:
            kind = message.WhichOneof("kind")
            if kind == "close":
                return
            if kind != "propose":
                raise InvalidInput("kind", "must be propose or close in an open session", kind)
            if last_response is None or message.propose != last_request:
                last_request = message.propose
                last_response = await self._propose(strategy, last_request, ahead)
            yield last_response
            ahead.begin()

    def _ready(self, request: SessionRequest) -> pb.DraftResponse:
        return pb.DraftResponse(
            committed_length=len(request.token_ids), load=convert.load_to_pb(self._host.load)
        )

    def _read_open(self, message: pb.DraftRequest) -> SessionRequest:
        require_open(message.WhichOneof("kind"))
        opened = message.open
        require_vocabulary(opened.vocabulary_fingerprint, self._host.info.vocabulary_fingerprint)
        request = SessionRequest(
            strategy=opened.strategy,
            access=access_from_pb(opened.phrases),
            ouroboros=ouroboros_from_pb(opened.ouroboros),
            opt_tree=opt_tree_from_pb(opened.opt_tree),
            cascade=cascade_from_pb(opened.cascade),
            **opening_fields(opened),
        )
        request.validate(self._host.model)
        if request.strategy == CASCADE:
            request.cascade.matrix_for(1 + len(self._host.smaller_models))
        return request

    async def _propose(
        self, strategy: Strategy, request: pb.ProposeDraft, ahead: Ahead
    ) -> pb.DraftResponse:
        received = time.perf_counter_ns()
        timings = ServiceTimings(forwards=await ahead.end())
        new_token_ids = list(request.new_token_ids)
        verdict, budget = self._verdict(request), _budget(request)
        strategy.session.commit(new_token_ids, request.committed_length)
        strategy.observe(new_token_ids, verdict)
        strategy.offer(self._offer(request))
        task = strategy.propose(budget)
        length = request.committed_length
        with tracing.current().child("drafter.round", committed_length=length) as span:
            tree = await self._host.engine.submit_awaitable(task, timings, strategy.session.slot)
            timings.service_ns = time.perf_counter_ns() - received
            span.set_attributes(nodes=len(tree), **timings.attributes())
        self._host.record_service_time(timings.service_ns)
        return pb.DraftResponse(
            committed_length=request.committed_length,
            draft=convert.tree_to_pb(tree),
            timings=convert.timings_to_pb(timings),
            proposed_nodes=strategy.proposed_nodes,
            end=strategy.end,  # type: ignore[arg-type]
            load=convert.load_to_pb(self._host.load),
        )

    def _verdict(self, request: pb.ProposeDraft) -> Verdict | None:
        """The message's verdict, or None; checked, as its predictions may become phrases."""
        if not request.HasField("verdict"):
            return None
        verdict = convert.verdict_from_pb(request.verdict)
        verdict.validate(self._host.model.vocabulary_size)
        return verdict

    def _offer(self, request: pb.ProposeDraft) -> DraftTree:
        if not request.HasField("offer"):
            return EMPTY_TREE
        offer = convert.tree_from_pb(request.offer)
        model = self._host.model
        offer.validate(
            vocabulary_size=model.vocabulary_size, max_nodes=model.options.max_draft_nodes
        )
        return offer


def _budget(request: pb.ProposeDraft) -> DraftBudget:
    budget = DraftBudget(
        max_nodes=request.max_nodes,
        max_depth=request.max_depth,
        least_path_probability=request.least_path_probability,
        tokens_per_second=request.tokens_per_second,
    )
    budget.validate()
    return budget
