"""Clients of the model services: they take and return our own types and hide the gRPC stubs."""

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
from orchestrator.stream import Stream, begun
from orchestrator.terms import SessionTerms
from protos import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

# Least time that a drafter may prefill without new forwards. Discovery asks it every second how
# many forwards it has run.
SILENCE_S = 3.0
# Numbers this process's sessions: a reopened session, or another request with the same id, is a new
# session.
OPENINGS = itertools.count(1)


class VerifierStream(Stream):
    """A session's stream to one verifier; raises what Stream does.

    Long prompts and other sessions may delay an answer beyond the time limit of one. The stream
    keeps waiting as long as the replica runs forwards.
    """

    def __init__(self, replica: Replica, terms: SessionTerms) -> None:
        left, headers = terms.deadline.remaining(), tracing.current().headers()
        stub = verifier_pb2_grpc.VerifierStub(replica.channel)
        call = begun(lambda: stub.Verify(timeout=left, metadata=headers))
        farewell = verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession())
        super().__init__(call, farewell, terms.answer_timeout_s)
        self._terms = terms
        self._replica = replica

    async def open(self, committed: Sequence[int]) -> Verification:
        """Opens the session; the answer has the next token."""
        request, target = self._terms.request, self._terms.target
        is_new = len(committed) == len(request.prompt)
        message = verifier_pb2.OpenVerifierSession(
            **_opening(self._terms, committed),
            successors=request.successors,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if is_new else None,
            model_fingerprint=target.model_fingerprint,
            dtype=target.dtype,
            quantization=target.quantization,
        )
        opened = verifier_pb2.VerifyRequest(open=message)
        answer = await self._verdict(opened, len(committed), EMPTY_TREE)
        if is_new and request.prompt_logprobs is not None:
            said = answer.prompt_logprobs
            if said is None or not said.fits(len(committed)):
                raise Unavailable("the first verdict must have the prompt's log-probabilities")
        return answer

    async def verify(self, committed_length: int, draft: DraftTree) -> Verification:
        """Sends a draft and returns the verdict on it."""
        message = verifier_pb2.VerifyDraft(
            committed_length=committed_length, draft=convert.tree_to_pb(draft)
        )
        asked = verifier_pb2.VerifyRequest(verify=message)
        return await self._verdict(asked, committed_length, draft)

    async def _verdict(
        self, message: verifier_pb2.VerifyRequest, length: int, draft: DraftTree
    ) -> Verification:
        answer = await self.ask(message, unheard_s=self._replica.unheard_s)
        self.load = convert.load_from_pb(answer.load)
        try:
            said = _verification(answer, length)
            if self._replica.model is not None:
                said.verdict.validate(self._replica.model.vocabulary_size)
        except (InvalidInput, ValueError) as error:  # the service's fault, not the user's
            raise Unavailable(f"the verdict is none: {error}") from None
        if not said.verdict.judges(draft):
            raise Unavailable(f"the verdict must judge the draft's {len(draft)} nodes")
        return said


class DrafterStream(Stream):
    """A session's stream to one drafter; raises what Stream does."""

    def __init__(self, replica: Replica, terms: SessionTerms) -> None:
        left, headers = terms.deadline.remaining(), tracing.current().headers()
        stub = drafter_pb2_grpc.DrafterStub(replica.channel)
        call = begun(lambda: stub.Draft(timeout=left, metadata=headers))
        farewell = drafter_pb2.DraftRequest(close=drafter_pb2.CloseDrafterSession())
        super().__init__(call, farewell, terms.answer_timeout_s)
        self._terms = terms
        self._replica = replica
        self._told = 0  # committed tokens that were sent to the drafter
        self._has_drafted = False  # whether a verdict can be on one of its drafts

    async def open(self, committed: Sequence[int]) -> None:
        """Opens the session; returns once the drafter has prefilled.

        Waits for that, and for other prompts before it, as long as the replica runs forwards.
        """
        request = self._terms.request
        message = drafter_pb2.OpenDrafterSession(
            **_opening(self._terms, committed),
            strategy=request.strategy,
            phrases=access_to_pb(request.access(self._terms.target.model_fingerprint)),
            ouroboros=ouroboros_to_pb(request.speculation.ouroboros),
            opt_tree=opt_tree_to_pb(request.speculation.opt_tree),
            cascade=cascade_to_pb(request.speculation.cascade),
        )
        opened = drafter_pb2.DraftRequest(open=message)
        answer = await self.ask(opened, max(self._timeout_s, SILENCE_S), self._replica.unheard_s)
        self.load = convert.load_from_pb(answer.load)
        self._told = len(committed)

    async def propose(
        self,
        committed: Sequence[int],
        verdict: Verdict | None,
        budget: DraftBudget,
        offer: DraftTree = EMPTY_TREE,
    ) -> Draft:
        """Asks for a draft, which is not validated. `verdict` is on the drafter's last draft."""
        heard = verdict if self._has_drafted else None  # else it is on a draft of a lost session
        message = drafter_pb2.ProposeDraft(
            committed_length=len(committed),
            new_token_ids=committed[self._told :],
            verdict=convert.judgement_to_pb(heard) if heard else None,
            max_nodes=budget.max_nodes,
            max_depth=budget.max_depth,
            least_path_probability=budget.least_path_probability,
            tokens_per_second=budget.tokens_per_second,
            offer=convert.tree_to_pb(offer) if len(offer) else None,
        )
        answer = await self.ask(drafter_pb2.DraftRequest(propose=message))
        self.load = convert.load_from_pb(answer.load)
        self._told, self._has_drafted = len(committed), True
        return Draft(
            tree=convert.tree_from_pb(answer.draft),
            committed_length=answer.committed_length,
            timings=convert.timings_from_pb(answer.timings),
            proposed={TokenSource.DRAFT_MODEL: answer.proposed_nodes},
            end=convert.draft_end_from_pb(answer.end),
        )


async def verifier_info(channel: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
    """The verifier's model and load, by its `Info`. Raises grpc.aio.AioRpcError."""
    stub = verifier_pb2_grpc.VerifierStub(channel)
    response = await stub.Info(verifier_pb2.VerifierInfoRequest(), timeout=timeout_s)
    return convert.model_info_from_pb(response.model), convert.load_from_pb(response.load)


async def drafter_info(channel: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
    """The drafter's model and load, by its `Info`. Raises grpc.aio.AioRpcError."""
    stub = drafter_pb2_grpc.DrafterStub(channel)
    response = await stub.Info(drafter_pb2.DrafterInfoRequest(), timeout=timeout_s)
    return convert.model_info_from_pb(response.model), convert.load_from_pb(response.load)


def _opening(terms: SessionTerms, committed: Sequence[int]) -> dict[str, Any]:
    """Fields that the openings of both services share; `rpc.sessions.opening_fields` reads them."""
    request = terms.request
    return {
        "session_id": logs.session_name(request.request_id, next(OPENINGS)),
        "vocabulary_fingerprint": terms.vocabulary_fingerprint,
        "token_ids": committed,
        "prompt_length": len(request.prompt),
        "sampling": convert.sampling_to_pb(request.sampling),
        "stop_token_ids": sorted(request.stop_token_ids),
        "prefix_group": request.prefix_group,
        "prefix_read_only": request.prefix_read_only,
    }


def _verification(message: verifier_pb2.VerifyResponse, length: int) -> Verification:
    """Converts an answer. Raises Unavailable if it is for another position or emits no tokens."""
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
