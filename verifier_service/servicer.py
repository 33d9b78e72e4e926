"""The verifier's gRPC service: streams of verdicts; forwards run on the engine's thread."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator

import grpc

from draftloop import logs, tracing
from draftloop.errors import InvalidInput
from draftloop.rpc import convert
from draftloop.rpc.sessions import (
    next_message,
    opening_fields,
    require_model,
    require_open,
    require_vocabulary,
)
from draftloop.runtime.metrics import PREFILL_TOKENS, observe_opening
from draftloop.runtime.service import ModelHost
from draftloop.tree import EMPTY_TREE, DraftTree, ServiceTimings, Verification
from protos import verifier_pb2 as pb
from protos import verifier_pb2_grpc
from verifier_service.round import verify
from verifier_service.session import SessionRequest, VerifierSession

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Verifier"].full_name
register = verifier_pb2_grpc.add_VerifierServicer_to_server

log = logs.get(__name__)


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    """Implements `draftloop.v1.Verifier`."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._settings = host.settings

    async def Info(
        self, request: pb.VerifierInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.VerifierInfoResponse:
        """Model, limits and load."""
        return pb.VerifierInfoResponse(
            model=convert.model_info_to_pb(self._host.info),
            load=convert.load_to_pb(self._host.load),
        )

    async def Verify(
        self, request_iterator: AsyncIterator[pb.VerifyRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.VerifyResponse]:
        """One session; its slot is freed however the stream ends."""
        idle = self._settings.idle_timeout_s
        first = await next_message(request_iterator, idle)
        if first is None:
            return
        received = time.perf_counter_ns()
        request = self._read_open(first)
        logs.bind_request(request.session_id)
        log.debug("session", committed=len(request.token_ids))
        with tracing.span("verifier.session", context.invocation_metadata() or ()):
            await self._host.compile_grammar(request.sampling.grammar)
            async with self._host.admission.slot(self._host.text_of(request)) as slot:
                PREFILL_TOKENS.inc(len(request.token_ids))
                session = VerifierSession(
                    self._host.model,
                    slot,
                    request,
                    is_alone=lambda: self._host.engine.is_alone,
                    ready_sampler=await request.ready_sampler(self._host.model),
                )
                yield await self._answer(session, EMPTY_TREE, received)
                while (message := await next_message(request_iterator, idle)) is not None:
                    received = time.perf_counter_ns()
                    kind = message.WhichOneof("kind")
                    if kind == "close":
                        return
                    if kind != "verify":
                        raise InvalidInput(
                            "kind", "must be verify or close in an open session", kind
                        )
                    draft = convert.tree_from_pb(message.verify.draft)
                    stored = session.stored_answer(message.verify.committed_length, draft)
                    if stored is not None:
                        yield self._to_pb(stored)
                        continue
                    session.check_draft(draft)
                    yield await self._answer(session, draft, received)
                    # runs while the orchestrator gets the next draft
                    ahead = max(draft.depths(), default=0) + 1
                    self._host.engine.call(functools.partial(session.prepare, ahead))

    def _read_open(self, message: pb.VerifyRequest) -> SessionRequest:
        require_open(message.WhichOneof("kind"))
        opened = message.open
        info = self._host.info
        require_vocabulary(opened.vocabulary_fingerprint, info.vocabulary_fingerprint)
        require_model(opened, info)
        request = SessionRequest(
            successors=opened.successors,
            logprobs=opened.logprobs if opened.HasField("logprobs") else None,
            prompt_logprobs=opened.prompt_logprobs if opened.HasField("prompt_logprobs") else None,
            **opening_fields(opened),
        )
        request.validate(self._host.model)
        return request

    async def _answer(
        self, session: VerifierSession, draft: DraftTree, received: int
    ) -> pb.VerifyResponse:
        timings, opens = ServiceTimings(), session.last_answer is None
        length = len(session.committed)
        task = verify(session, draft, chunk_tokens=self._host.prefill_chunk_tokens)
        with tracing.current().child("verifier.round", committed_length=length) as span:
            verdict = await self._host.engine.submit_awaitable(task, timings, session.slot)
            timings.service_ns = time.perf_counter_ns() - received
            if opens:
                timings.cached_tokens = session.slot.shared
                observe_opening(session.slot, length)
            span.set_attributes(nodes=len(draft), **timings.attributes())
        self._host.record_service_time(timings.service_ns)
        session.last_draft = draft
        session.last_answer = Verification(
            verdict=verdict,
            committed_length=length,
            timings=timings,
            prompt_logprobs=session.prompt_logprobs if opens else None,
        )
        answer = self._to_pb(session.last_answer)
        if session.last_answer.prompt_logprobs is not None:
            self._require_sendable(answer, session.request)
        return answer

    def _require_sendable(self, answer: pb.VerifyResponse, request: SessionRequest) -> None:
        """Raises InvalidInput if the prompt's log-probabilities do not fit into a message."""
        size, most = answer.ByteSize(), self._host.settings.max_message_bytes
        if size > most:
            rule = (
                f"must fit into an answer of {most} bytes (--max-message-bytes of verifier and "
                f"orchestrator); those of {request.prompt_length} tokens take {size}"
            )
            raise InvalidInput("prompt_logprobs", rule, request.prompt_logprobs)

    def _to_pb(self, answer: Verification) -> pb.VerifyResponse:
        return pb.VerifyResponse(
            committed_length=answer.committed_length,
            verdict=convert.verdict_to_pb(answer.verdict),
            timings=convert.timings_to_pb(answer.timings),
            prompt_logprobs=convert.prompt_logprobs_to_pb(answer.prompt_logprobs),
            load=convert.load_to_pb(self._host.load),
        )
