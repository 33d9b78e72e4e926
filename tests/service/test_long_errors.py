"""Errors of any length keep their kind, although gRPC limits the size of trailing metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from draftloop.errors import (
    DraftloopError,
    InvalidInput,
    Mismatch,
    Overloaded,
    SessionLost,
    Unavailable,
)
from draftloop.rpc.interceptors import to_status
from draftloop.rpc.status import to_error
from protos import verifier_pb2, verifier_pb2_grpc
from tests.faults import fakes

LETTERS = ("a", "%", "\n", "é", "字", "😀")
KINDS: dict[str, Any] = {
    "InvalidInput": lambda text: InvalidInput.from_description("grammar.regex", text),
    "Overloaded": Overloaded,
    "Unavailable": Unavailable,
    "Mismatch": Mismatch,
    "SessionLost": SessionLost,
    "DraftloopError": DraftloopError,
}


class FailingServicer(verifier_pb2_grpc.VerifierServicer):
    """Fails every call with `error`."""

    error: DraftloopError

    async def Info(self, request: Any, context: Any) -> Any:
        raise self.error


@asynccontextmanager
async def failing_server() -> AsyncIterator[tuple[FailingServicer, verifier_pb2_grpc.VerifierStub]]:
    fake = FailingServicer()
    add = verifier_pb2_grpc.add_VerifierServicer_to_server
    async with (
        fakes.listening(add, fake) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield fake, verifier_pb2_grpc.VerifierStub(channel)


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_of_any_length_keep_their_kind(kind: str) -> None:
    async with failing_server() as (fake, stub):
        for letter in LETTERS:
            for length in (200, 800, 1500, 100_000):
                fake.error = KINDS[kind](letter * length)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Info(verifier_pb2.VerifierInfoRequest())
                assert caught.value.code() is to_status(fake.error)[0]
                message = str(to_error(caught.value, "here"))
                assert letter * length in message or f"{letter * 200}…" in message
