"""Misbehaving services that speak the real protocol on this process's event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from draftloop.errors import DeadlineExceeded, InvalidInput, SessionLost, StaleSession
from draftloop.rpc.interceptors import ErrorInterceptor
from protos import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from protos import speculation_pb2 as shared

DRAFT_MODEL = shared.TOKEN_SOURCE_DRAFT_MODEL
Reply = drafter_pb2.DraftResponse
Behavior = Callable[[drafter_pb2.ProposeDraft, random.Random], Reply]


def draft(length: int, token_ids: list[int], parents: list[int]) -> Reply:
    tree = shared.DraftTree(
        token_ids=token_ids,
        parents=parents,
        estimates=[0.5] * len(token_ids),
        sources=[DRAFT_MODEL] * len(token_ids),
    )
    return Reply(committed_length=length, draft=tree)


def wrong_chain(request: drafter_pb2.ProposeDraft, rng: random.Random) -> Reply:
    count = min(request.max_nodes, request.max_depth, 4)
    tokens = [rng.randrange(1, 4096) for _ in range(count)]
    return draft(request.committed_length, tokens, list(range(-1, count - 1)))


def branches(request: drafter_pb2.ProposeDraft, rng: random.Random) -> Reply:
    """A random tree of frequent tokens, so that some branches are accepted."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    while len(tokens) < request.max_nodes:
        parent = rng.randrange(-1, len(tokens))
        token = rng.randrange(1, 400)
        depth = 1 if parent < 0 else depths[parent] + 1
        if depth > request.max_depth or (parent, token) in zip(parents, tokens, strict=True):
            continue
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
    return draft(request.committed_length, tokens, parents)


def no_draft(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    return draft(request.committed_length, [], [])


def cycle(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    return draft(request.committed_length, [5, 6], [1, 0])


def out_of_vocabulary(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    return draft(request.committed_length, [4096], [-1])


def wrong_length(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    return draft(request.committed_length + 1, [5], [-1])


def too_many(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    count = request.max_nodes + 1
    return draft(request.committed_length, list(range(1, count + 1)), [-1] * count)


def too_deep(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    count = request.max_depth + 1
    return draft(request.committed_length, [5] * count, list(range(-1, count - 1)))


def uneven_lengths(request: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    return draft(request.committed_length, [5, 6], [-1])


def garbage_estimates(request: drafter_pb2.ProposeDraft, rng: random.Random) -> Reply:
    reply = draft(request.committed_length, [5], [-1])
    reply.draft.estimates[0] = rng.choice([float("nan"), float("inf"), -1.0, 2.0])
    return reply


def huge_counts(request: drafter_pb2.ProposeDraft, rng: random.Random) -> Reply:
    """An ordinary draft, with counts and times larger than their fields should ever hold."""
    reply = wrong_chain(request, rng)
    reply.proposed_nodes = reply.timings.forwards = 2**32 - 1
    reply.timings.service_ns = reply.timings.forward_ns = 2**64 - 1
    return reply


def broken(_asked: drafter_pb2.ProposeDraft, _: random.Random) -> Reply:
    raise RuntimeError("broken on purpose")


class FakeDrafter(drafter_pb2_grpc.DrafterServicer):
    """Answers every proposal with `behavior`'s reply, after `delay_s`."""

    def __init__(self, info: Any, behavior: Behavior, delay_s: float = 0.0) -> None:
        self._info = info
        self._behavior = behavior
        self.delay_s = delay_s
        self.info_delay_s = self.prefill_s = 0.0
        self.opened = self.asked = 0

    async def Info(self, request: Any, context: Any) -> drafter_pb2.DrafterInfoResponse:
        await asyncio.sleep(self.info_delay_s)
        return drafter_pb2.DrafterInfoResponse(model=self._info)

    async def Draft(self, messages: Any, context: Any) -> AsyncIterator[Reply]:
        rng = random.Random(7)
        async for message in messages:
            kind = message.WhichOneof("kind")
            if kind == "close":
                return
            if kind == "open":
                self.opened += 1
                await asyncio.sleep(self.prefill_s)
                length = len(message.open.token_ids)
                yield drafter_pb2.DraftResponse(committed_length=length)
            if kind == "propose":
                self.asked += 1
                await asyncio.sleep(self.delay_s)
                try:
                    reply = self._behavior(message.propose, rng)
                except SessionLost as error:
                    await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
                except RuntimeError as error:
                    await context.abort(grpc.StatusCode.INTERNAL, str(error))
                yield reply


class ScriptedVerifier(verifier_pb2_grpc.VerifierServicer):
    """A verifier without a model: it emits each position as a token and accepts nothing.

    It hangs once the committed length is `hangs_at`. Drafts with tokens from `vocabulary_size` on
    are refused.
    """

    def __init__(
        self, hangs_at: int | None = None, vocabulary_size: int = 1 << 31,
        accepted: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._hangs_at = hangs_at
        self._vocabulary_size = vocabulary_size
        self._accepted = accepted  # as the nodes accepted in the first draft, once
        self._ended = asyncio.Event()
        self.times_given: list[float | None] = []
        self.open_sessions = 0

    def end(self) -> None:
        """Ends the streams that hang, without an answer."""
        self._ended.set()

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        self.times_given.append(context.time_remaining())
        self.open_sessions += 1
        length = 0
        try:
            async for message in messages:
                kind = message.WhichOneof("kind")
                if kind == "close":
                    return
                length = length + 1 if kind == "verify" else len(message.open.token_ids)
                if self._hangs_at is not None and length >= self._hangs_at:
                    await self._ended.wait()
                    return
                nodes = len(message.verify.draft.token_ids)
                if max(message.verify.draft.token_ids, default=0) >= self._vocabulary_size:
                    raise InvalidInput("draft.token_ids[0]", "must be in the vocabulary", nodes)
                accepted = self._accepted if kind == "verify" else ()
                self._accepted = () if kind == "verify" else self._accepted
                verdict = shared.Verdict(
                    accepted_nodes=accepted,
                    emitted_token_ids=[length],
                    root_prediction=length,
                    node_predictions=[0] * nodes,
                )
                yield verifier_pb2.VerifyResponse(committed_length=length, verdict=verdict)
        finally:
            self.open_sessions -= 1


class FlakyVerifier(verifier_pb2_grpc.VerifierServicer):
    """Relays to a real verifier and spoils every third answer of a stream."""

    def __init__(self, channel: grpc.aio.Channel, fault: str) -> None:
        self._stub = verifier_pb2_grpc.VerifierStub(channel)
        self._fault = fault
        self.spoiled = 0
        self.open_sessions = 0
        self.time_given: float | None = None

    async def Info(self, request: Any, context: Any) -> verifier_pb2.VerifierInfoResponse:
        info: verifier_pb2.VerifierInfoResponse = await self._stub.Info(request)
        return info

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        call = self._stub.Verify()
        count = 0
        self.open_sessions += 1
        self.time_given = context.time_remaining()
        try:
            async for message in messages:
                if message.WhichOneof("kind") == "close":
                    return
                count += 1
                await call.write(message)
                answer = await call.read()
                if count % 3 == 0:
                    self.spoiled += 1
                    if self._fault == "gone":
                        raise SessionLost("dropped on purpose")
                    if self._fault == "stale":
                        raise StaleSession(assumed=answer.committed_length, actual=1)
                    if self._fault == "late":  # a proxy's: there is time left
                        raise DeadlineExceeded
                    if self._fault == "end":
                        return
                    if self._fault == "hang":
                        await asyncio.Event().wait()
                    answer.committed_length -= 1  # "wrong position"
                yield answer
        finally:
            call.cancel()
            self.open_sessions -= 1


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Accepts connections and never sends a byte."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in writers:
            writer.close()
        server.close()


@asynccontextmanager
async def listening(
    add: Callable[[Any, Any], None], servicer: Any, port: int = 0
) -> AsyncIterator[str]:
    """Serves `servicer` on this loopback port, or on a free one."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    add(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
