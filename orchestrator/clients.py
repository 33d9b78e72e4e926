"""Sessions on the model services as the loop sees them: drafts and verdicts, or a clear loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc

from draftloop import logs
from draftloop.errors import (
    DraftloopError,
    InvalidInput,
    Mismatch,
    Overloaded,
    SessionLost,
    Unavailable,
)
from draftloop.model_info import ModelInfo
from draftloop.request import GenerationRequest
from draftloop.rpc import convert
from draftloop.rpc.convert_speculation import ouroboros_to_pb, scope_to_pb
from draftloop.rpc.status import error_info
from draftloop.tree import Draft, DraftBudget, DraftTree, Verdict, Verification
from orchestrator.replicas import Replica, Replicas
from protos import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

REOPEN_PAUSE_S = 0.05

log = logs.get(__name__)


class Stream:
    """One session's stream: a message out, a message in, within a time."""

    def __init__(self, call: Any, timeout_s: float) -> None:
        self._call = call
        self._timeout_s = timeout_s

    async def send(self, message: Any) -> None:
        """Raises grpc.aio.AioRpcError or SessionLost where the stream is broken."""
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:
            raise SessionLost("the stream has ended") from None

    async def receive(self) -> Any:
        """Raises grpc.aio.AioRpcError, SessionLost or TimeoutError."""
        async with asyncio.timeout(self._timeout_s):
            message = await self._call.read()
        if message is grpc.aio.EOF:
            raise SessionLost("the service ended the stream")
        return message

    async def close(self, farewell: Any) -> None:
        """Says that this side has finished; never fails and never waits for an answer."""
        try:
            await self._call.write(farewell)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._call.cancel()

    def cancel(self) -> None:
        """Drops the stream; the service frees the session."""
        self._call.cancel()


class VerifierSession:
    """One request's session on some verifier; reopened elsewhere when it is lost."""

    def __init__(
        self,
        replicas: Replicas,
        request: GenerationRequest,
        fingerprint: str,
        *,
        timeout_s: float,
        reopen_for_s: float,
    ) -> None:
        self._replicas = replicas
        self._request = request
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._reopen_for_s = reopen_for_s
        self._stream: Stream | None = None
        self._replica: Replica | None = None
        self.reopened = 0

    async def open(self, committed: Sequence[int]) -> Verification:
        """Opens on the best replica; the answer holds the next token.

        Raises Unavailable at once where no replica takes the session.
        """
        problem: Exception = Unavailable("verifier: no address is configured")
        for replica in self._replicas.by_preference():
            try:
                answer = await self._open_on(replica, committed)
            except (grpc.aio.AioRpcError, SessionLost, TimeoutError) as error:
                problem = _as_user_error(error)
                if isinstance(problem, InvalidInput | Mismatch):
                    raise problem from None
                self._lose(replica)
                continue
            replica.worked()
            return answer
        raise problem

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        """The verdict on `draft`; after a loss that on the empty draft, from another session."""
        try:
            if self._stream is None:
                raise SessionLost("no stream is open")
            message = verifier_pb2.VerifyDraft(
                committed_length=len(committed), draft=convert.tree_to_pb(draft)
            )
            await self._stream.send(verifier_pb2.VerifyRequest(verify=message))
            return _verification(await self._stream.receive(), committed)
        except (grpc.aio.AioRpcError, SessionLost, TimeoutError) as error:
            problem = _as_user_error(error)
            if isinstance(problem, InvalidInput):
                raise problem from None
            log.warning("verifier session lost", reason=str(problem), committed=len(committed))
            if self._replica is not None:
                self._lose(self._replica)
            return await self._reopen(committed)

    async def close(self) -> None:
        """Frees the session."""
        if self._stream is not None:
            farewell = verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession())
            await self._stream.close(farewell)
        self._leave()

    async def _reopen(self, committed: Sequence[int]) -> Verification:
        deadline = time.monotonic() + self._reopen_for_s
        while True:
            try:
                answer = await self.open(committed)
            except (Unavailable, Overloaded):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(REOPEN_PAUSE_S)
                continue
            self.reopened += 1
            return answer

    async def _open_on(self, replica: Replica, committed: Sequence[int]) -> Verification:
        call = verifier_pb2_grpc.VerifierStub(replica.channel).Verify()
        stream = Stream(call, self._timeout_s)
        request = self._request
        message = verifier_pb2.OpenVerifierSession(
            session_id=request.request_id,
            vocabulary_fingerprint=self._fingerprint,
            token_ids=committed,
            prompt_length=len(request.prompt),
            sampling=convert.sampling_to_pb(request.sampling),
            stop_token_ids=sorted(request.stop_token_ids),
        )
        self._stream, self._replica = stream, replica
        replica.sessions += 1
        await stream.send(verifier_pb2.VerifyRequest(open=message))
        return _verification(await stream.receive(), committed)

    def _lose(self, replica: Replica) -> None:
        replica.failed()
        if self._stream is not None:
            self._stream.cancel()
        self._leave()

    def _leave(self) -> None:
        if self._replica is not None:
            self._replica.sessions -= 1
        self._stream = self._replica = None


class DrafterSession:
    """One request's session on some drafter. Every failure is an Unavailable: the loop goes on."""

    def __init__(
        self,
        replicas: Replicas,
        request: GenerationRequest,
        fingerprint: str,
        *,
        timeout_s: float,
        target: ModelInfo,
    ) -> None:
        self._replicas = replicas
        self._request = request
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._vocabulary_size = target.vocabulary_size
        self._target_fingerprint = target.model_fingerprint
        self._stream: Stream | None = None
        self._replica: Replica | None = None
        self._told = 0

    async def open(self, committed: Sequence[int]) -> None:
        """Opens on the best replica that is not resting; the drafter prefills at once."""
        replica = next((r for r in self._replicas.by_preference() if not r.resting), None)
        if replica is None:
            raise Unavailable("drafter: none is reachable")
        call = drafter_pb2_grpc.DrafterStub(replica.channel).Draft()
        request = self._request
        message = drafter_pb2.OpenDrafterSession(
            session_id=request.request_id,
            vocabulary_fingerprint=self._fingerprint,
            token_ids=committed,
            prompt_length=len(request.prompt),
            sampling=convert.sampling_to_pb(request.sampling),
            strategy=request.strategy,
            phrases=drafter_pb2.PhraseAccess(
                scope=scope_to_pb(request.speculation.phrases),
                target_fingerprint=self._target_fingerprint,
                tenant=request.tenant,
                origin=request.origin,
            ),
            ouroboros=ouroboros_to_pb(request.speculation.ouroboros),
        )
        self._stream, self._replica = Stream(call, self._timeout_s), replica
        self._told = len(committed)
        replica.sessions += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream.send(drafter_pb2.DraftRequest(open=message))
        except (grpc.aio.AioRpcError, SessionLost, TimeoutError) as error:
            raise self._lost(error) from None

    async def propose(
        self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
    ) -> Draft:
        """A checked draft within the budget. Raises Unavailable where none came."""
        if self._stream is None:
            await self.open(committed)
            verdict = None
        assert self._stream is not None
        message = drafter_pb2.ProposeDraft(
            committed_length=len(committed),
            new_token_ids=committed[self._told :],
            verdict=convert.verdict_to_pb(verdict) if verdict else None,
            max_nodes=budget.max_nodes,
            max_depth=budget.max_depth,
            least_path_probability=budget.least_path_probability,
            tokens_per_second=budget.tokens_per_second,
        )
        try:
            await self._stream.send(drafter_pb2.DraftRequest(propose=message))
            draft = self._checked(await self._stream.receive(), len(committed), budget)
        except (grpc.aio.AioRpcError, DraftloopError, TimeoutError) as error:
            raise self._lost(error) from None
        self._told = len(committed)
        if self._replica is not None:
            self._replica.worked()
        return draft

    async def close(self) -> None:
        """Frees the session."""
        if self._stream is not None:
            farewell = drafter_pb2.DraftRequest(close=drafter_pb2.CloseDrafterSession())
            await self._stream.close(farewell)
        self._leave()

    def _checked(
        self, message: drafter_pb2.DraftResponse, length: int, budget: DraftBudget
    ) -> Draft:
        """A drafter's mistake must cost this draft, not the request."""
        if message.committed_length != length:
            rule = f"must be {length}, the length asked for"
            raise InvalidInput("committed_length", rule, message.committed_length)
        tree = convert.tree_from_pb(message.draft)
        tree.validate(vocabulary_size=self._vocabulary_size, max_nodes=budget.max_nodes)
        deepest = max(tree.depths(), default=0)
        if deepest > budget.max_depth:
            raise InvalidInput(
                "draft.parents", f"must have depth at most {budget.max_depth}", deepest
            )
        timings = convert.timings_from_pb(message.timings)
        return Draft(tree=tree, committed_length=length, timings=timings)

    def _lost(self, error: Exception) -> Unavailable:
        problem = _as_user_error(error)
        log.warning("drafter session lost", reason=str(problem))
        if self._replica is not None:
            self._replica.failed()
        if self._stream is not None:
            self._stream.cancel()
        self._leave()
        return Unavailable(f"drafter: {problem}")

    def _leave(self) -> None:
        if self._replica is not None:
            self._replica.sessions -= 1
        self._stream = self._replica = None


async def verifier_info(replica: Replica, timeout_s: float) -> ModelInfo:
    """What the verifier says of itself. Raises grpc.aio.AioRpcError."""
    stub = verifier_pb2_grpc.VerifierStub(replica.channel)
    response = await stub.Info(verifier_pb2.VerifierInfoRequest(), timeout=timeout_s)
    return convert.model_info_from_pb(response.model)


async def drafter_info(replica: Replica, timeout_s: float) -> ModelInfo:
    """What the drafter says of itself. Raises grpc.aio.AioRpcError."""
    stub = drafter_pb2_grpc.DrafterStub(replica.channel)
    response = await stub.Info(drafter_pb2.DrafterInfoRequest(), timeout=timeout_s)
    return convert.model_info_from_pb(response.model)


def _verification(message: verifier_pb2.VerifyResponse, committed: Sequence[int]) -> Verification:
    """Raises SessionLost where the answer is to another position, or to no purpose."""
    if message.committed_length != len(committed) or not message.verdict.emitted_token_ids:
        raise SessionLost(
            f"the verdict must emit tokens after position {len(committed)}; got "
            f"{len(message.verdict.emitted_token_ids)} after {message.committed_length}"
        )
    return Verification(
        verdict=convert.verdict_from_pb(message.verdict),
        committed_length=message.committed_length,
        timings=convert.timings_from_pb(message.timings),
    )


def _as_user_error(error: Exception) -> Exception:
    """What a failed call means: the user's mistake, too much load, or a part that is gone."""
    if isinstance(error, TimeoutError):
        return Unavailable("no answer came in time")
    if not isinstance(error, grpc.aio.AioRpcError):
        return error if isinstance(error, InvalidInput) else Unavailable(str(error))
    text = error.details() or error.code().name
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, description = text.partition(": ")
        return InvalidInput.passed_on(field, description)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(text.partition("; try again")[0])
    info = error_info(error)
    if info is not None and info.reason == "MISMATCH":
        return Mismatch(text)
    return Unavailable(text)
