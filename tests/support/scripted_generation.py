"""A Generation service over loopback gRPC with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc

from draftloop.client.loop_thread import LoopThread
from draftloop.config import MAX_MESSAGE_BYTES
from draftloop.errors import DraftloopError
from draftloop.rpc.channel import shared_options
from draftloop.rpc.interceptors import ErrorInterceptor
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc, speculation_pb2

DRAFT_MODEL = speculation_pb2.TOKEN_SOURCE_DRAFT_MODEL
SUMMARY = pb.GenerationSummary(
    request_id="r", finish_reason=pb.FINISH_REASON_LENGTH, prompt_tokens=2, output_tokens=3, seed=7
)


class ScriptedGeneration(generation_pb2_grpc.GenerationServicer):
    """Generates the tokens 0, 1, 2 with the text "012".

    Every call first raises the next of `failures`; one that is a status has no details of ours,
    like those of gRPC's core. After its first token, a stream waits if `stuck` is set, and raises
    `midway` if that is set. GenerateOnce waits if `busy` is set.
    """

    def __init__(self) -> None:
        self.failures: list[Exception | grpc.StatusCode] = []
        self.midway: DraftloopError | None = None
        self.stuck = self.busy = False
        self.calls = 0
        self.running = 0
        self.metadata: dict[str, str] = {}
        self.time_remaining: float | None = None

    async def _begin(self, context: grpc.aio.ServicerContext) -> None:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata())
        self.time_remaining = context.time_remaining()
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, grpc.StatusCode):
                await context.abort(failure)
            raise failure

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        """One token after another, then the summary."""
        await self._begin(context)
        self.running += 1
        try:
            for token in range(3):
                yield pb.GenerateResponse(text=str(token), token_ids=[token], sources=[DRAFT_MODEL])
                if self.midway is not None:
                    raise self.midway
                if self.stuck:
                    await asyncio.sleep(600)
            yield pb.GenerateResponse(summary=SUMMARY)
        finally:
            self.running -= 1

    async def GenerateOnce(
        self, request: pb.GenerateOnceRequest, context: grpc.aio.ServicerContext
    ) -> pb.GenerateOnceResponse:
        """The whole answer."""
        await self._begin(context)
        if self.busy:
            self.running += 1
            try:
                await asyncio.sleep(600)
            finally:
                self.running -= 1
        return pb.GenerateOnceResponse(
            text="012",
            token_ids=[0, 1, 2],
            sources=[DRAFT_MODEL] * 3,
            summary=SUMMARY,
        )

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DetokenizeResponse:
        """A text as long as the first token's id."""
        await self._begin(context)
        return pb.DetokenizeResponse(text="x" * request.token_ids[0])


@contextmanager
def serving(
    servicer: ScriptedGeneration, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[str]:
    """The service's address while it runs on a thread of its own."""

    async def start() -> tuple[grpc.aio.Server, str]:
        options = shared_options(max_message_bytes)
        server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=options)
        generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, f"127.0.0.1:{port}"

    thread = LoopThread()
    try:
        server, address = thread.run(start())
        try:
            yield address
        finally:
            thread.run(server.stop(0))
    finally:
        thread.stop()
