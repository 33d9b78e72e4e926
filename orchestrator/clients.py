"""Clients of the model services. They take and return our own types; stubs stay in this file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import grpc

from draftloop import logs, tracing
from draftloop.errors import InvalidInput, Unavailable
from draftloop.rpc import convert
from draftloop.rpc.convert_speculation import (
    access_to_pb,
    cascade_to_pb,
    opt_tree_to_pb,
    ouroboros_to_pb,
)
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftTree,
    TokenSource,
    Verdict,
    Verification,
)
from orchestrator.discovery import ServiceInfo
from orchestrator.replicas import Replica
from orchestrator.stream import Stream, start_call
from orchestrator.terms import SessionTerms
from protos import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

# Seconds without new forwards after which a prefilling drafter has failed. Discovery asks it every
# second how many it has run.
MAX_SILENCE_S = 3.0
# Numbers the sessions of this process: a reopened session, or a request id used twice, gets a new
# session id.
SESSION_NUMBERS = itertools.count(1)


class VerifierStream(Stream):
    """A session's stream to one verifier; raises what Stream does.

    Long prompts and sessions ahead in the queue may delay an answer beyond its timeout. As long as
    the replica runs forwards, the stream goes on waiting.
    """

    def __init__(self, replica: Replica, terms: SessionTerms) -> None:
        remaining_s, headers = terms.deadline.remaining(), tracing.current().headers()
        stub = verifier_pb2_grpc.VerifierStub(replica.channel)
        call = start_call(lambda: stub.Verify(timeout=remaining_s, metadata=headers))
        close_message = verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession())
        super().__init__(call, close_message, terms.answer_timeout_s)
        self._terms = terms
        self._replica = replica

    async def open(self, committed: Sequence[int]) -> Verification:
        """Opens the session; the answer holds the next token."""
        request, target = self._terms.request, self._terms.target
        is_new = len(committed) == len(request.prompt)
        message = verifier_pb2.OpenVerifierSession(
            **_opening_fields(self._terms, committed),
            successors=request.successors,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if is_new else None,
            model_fingerprint=target.model_fingerprint,
            dtype=target.dtype,
            quantization=target.quantization,
        )
        open_request = verifier_pb2.VerifyRequest(open=message)
        answer = await self._request_verdict(open_request, len(committed), EMPTY_TREE)
        if is_new and request.prompt_logprobs is not None:
            prompt_logprobs = answer.prompt_logprobs
            if prompt_logprobs is None or not prompt_logprobs.fits(len(committed)):
                raise Unavailable("the first verdict must have the prompt's log-probabilities")
        return answer

    async def verify(self, committed_length: int, draft: DraftTree) -> Verification:
        """The verdict on a draft."""
        message = verifier_pb2.VerifyDraft(
            committed_length=committed_length, draft=convert.tree_to_pb(draft)
        )
        request = verifier_pb2.VerifyRequest(verify=message)
        return await self._request_verdict(request, committed_length, draft)

    async def _request_verdict(
        self, message: verifier_pb2.VerifyRequest, length: int, draft: DraftTree
    ) -> Verification:
        answer = await self.ask(message, silence_s=self._replica.silence_s)
        self.load = convert.load_from_pb(answer.load)
        try:
            verification = _verification_from_pb(answer, length)
            if self._replica.model is not None:
                verification.verdict.validate(self._replica.model.vocabulary_size)
        except (InvalidInput, ValueError) as error:  # not the client's fault
            raise Unavailable(f"the verdict is none: {error}") from None
        if not verification.verdict.judges(draft):
            raise Unavailable(f"the verdict must judge the draft's {len(draft)} nodes")
        return verification


class DrafterStream(Stream):
    """A session's stream to one drafter; raises what Stream does."""

    def __init__(self, replica: Replica, terms: SessionTerms) -> None:
        remaining_s, headers = terms.deadline.remaining(), tracing.current().headers()
        stub = drafter_pb2_grpc.DrafterStub(replica.channel)
        call = start_call(lambda: stub.Draft(timeout=remaining_s, metadata=headers))
        close_message = drafter_pb2.DraftRequest(close=drafter_pb2.CloseDrafterSession())
        super().__init__(call, close_message, terms.answer_timeout_s)
        self._terms = terms
        self._replica = replica
        self._sent_tokens = 0  # tokens of the text that the drafter has
        self._has_drafted = False  # whether this session made a draft that a verdict may be about

    async def open(self, committed: Sequence[int]) -> None:
        """Opens the session; returns once the drafter has prefilled.

        Waits as long as the replica runs forwards, even for other prompts ahead in the queue.
        """
        request = self._terms.request
        message = drafter_pb2.OpenDrafterSession(
            **_opening_fields(self._terms, committed),
            strategy=request.strategy,
            target_processor=self._terms.target.processor,
            phrases=access_to_pb(request.access(self._terms.target.model_fingerprint)),
            ouroboros=ouroboros_to_pb(request.speculation.ouroboros),
            opt_tree=opt_tree_to_pb(request.speculation.opt_tree),
            cascade=cascade_to_pb(request.speculation.cascade),
        )
        open_request = drafter_pb2.DraftRequest(open=message)
        answer = await self.ask(
            open_request, max(self._timeout_s, MAX_SILENCE_S), self._replica.silence_s
        )
        self.load = convert.load_from_pb(answer.load)
        self._sent_tokens = len(committed)

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree = EMPTY_TREE,
    ) -> Draft:
        """An unchecked draft. `verdict` is the one on the drafter's previous draft."""
        own_verdict = verdict if self._has_drafted else None  # otherwise it is about a lost session
        message = drafter_pb2.ProposeDraft(
            committed_length=len(committed),
            new_token_ids=committed[self._sent_tokens :],
            verdict=convert.judgement_to_pb(own_verdict) if own_verdict else None,
            max_nodes=budget.max_nodes,
            max_depth=budget.max_depth,
            least_path_probability=budget.least_path_probability,
            tokens_per_second=budget.tokens_per_second,
            offer=convert.tree_to_pb(offer) if len(offer) else None,
        )
        answer = await self.ask(drafter_pb2.DraftRequest(propose=message))
        self.load = convert.load_from_pb(answer.load)
        self._sent_tokens, self._has_drafted = len(committed), True
        return Draft(
            tree=convert.tree_from_pb(answer.draft),
            committed_length=answer.committed_length,
            timings=convert.timings_from_pb(answer.timings),
            proposed={TokenSource.DRAFT_MODEL: answer.proposed_nodes},
            end=convert.draft_end_from_pb(answer.end),
        )


async def verifier_info(channel: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
    """Model and load as the verifier reports them. Raises grpc.aio.AioRpcError."""
    stub = verifier_pb2_grpc.VerifierStub(channel)
    response = await stub.Info(verifier_pb2.VerifierInfoRequest(), timeout=timeout_s)
    return convert.model_info_from_pb(response.model), convert.load_from_pb(response.load)


async def drafter_info(channel: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
    """Model and load as the drafter reports them. Raises grpc.aio.AioRpcError."""
    stub = drafter_pb2_grpc.DrafterStub(channel)
    response = await stub.Info(drafter_pb2.DrafterInfoRequest(), timeout=timeout_s)
    return convert.model_info_from_pb(response.model), convert.load_from_pb(response.load)


def _opening_fields(terms: SessionTerms, committed: Sequence[int]) -> dict[str, Any]:
    """Fields common to both services' openings; `rpc.sessions.opening_fields` reads them there."""
    request = terms.request
    return {
        "session_id": logs.session_name(request.request_id, next(SESSION_NUMBERS)),
        "vocabulary_fingerprint": terms.vocabulary_fingerprint,
        "token_ids": committed,
        "prompt_length": len(request.prompt),
        "sampling": convert.sampling_to_pb(request.sampling),
        "stop_token_ids": sorted(request.stop_token_ids),
        "prefix_group": request.prefix_group,
        "prefix_read_only": request.prefix_read_only,
    }


def _verification_from_pb(message: verifier_pb2.VerifyResponse, length: int) -> Verification:
    """The answer as our type. Raises Unavailable if its position is wrong or it has no tokens."""
    if message.committed_length != length or not message.verdict.emitted_token_ids:
        raise Unavailable(
            f"the verdict must emit tokens after position {length}; got "
            f"{len(message.verdict.emitted_token_ids)} after {message.committed_length}"
        )
    return Verification(
        verdict=convert.verdict_from_pb(message.verdict),
        committed_length=message.committed_length,
        timings=convert.timings_from_pb(message.timings),
        prompt_logprobs=convert.prompt_logprobs_from_pb(message),
    )
