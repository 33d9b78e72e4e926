"""Reopening a session after a long output does not block the sessions of others."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from draftloop.runtime.grammars import Follower
from draftloop.runtime.sessions import MAX_AT_ONCE
from orchestrator.tokenizer import Tokenizer
from protos.drafter_pb2_grpc import DrafterStub
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import MODEL, Start
from tests.service.sessions import (
    PROMPT,
    open_drafter,
    open_verifier,
    propose,
    sampling,
    send_and_read,
)

HELD = sampling(grammar={"regex": "[a-z ]*"})


@pytest.fixture
def consuming_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of threads in which a grammar consumed several tokens at once."""
    threads: list[str] = []
    observe = Follower.observe

    def record_thread(follower: Follower, token_ids: Sequence[int]) -> None:
        if len(token_ids) > 1:
            threads.append(threading.current_thread().name)
        observe(follower, token_ids)

    monkeypatch.setattr(Follower, "observe", record_thread)
    return threads


def output_of(tokens: int) -> list[int]:
    return (Tokenizer(MODEL).encode("some words and more ") * tokens)[:tokens]


async def test_verifier_consumes_long_outputs_off_the_event_loop(
    serve_verifier: Start, consuming_threads: list[str]
) -> None:
    async with serve_verifier() as (channel, _):
        for tokens in (MAX_AT_ONCE, MAX_AT_ONCE + 1):
            call = VerifierStub(channel).Verify()
            text = [*PROMPT, *output_of(tokens)]
            assert (
                await send_and_read(call, open_verifier(text, sampling=HELD))
            ).verdict.emitted_token_ids
            call.cancel()
    loops = threading.current_thread().name
    assert (
        consuming_threads[0] == loops
        and loops not in consuming_threads[1:]
        and len(consuming_threads) == 2
    )


async def test_drafter_consumes_long_outputs_off_the_event_loop(
    serve_drafter: Start, consuming_threads: list[str]
) -> None:
    async with serve_drafter() as (channel, _):
        call = DrafterStub(channel).Draft()
        text = [*PROMPT, *output_of(MAX_AT_ONCE + 1)]
        await send_and_read(call, open_drafter(text, sampling=HELD))
        assert (await send_and_read(call, propose(len(text)))).draft.token_ids
        call.cancel()
    assert len(consuming_threads) == 1 and threading.current_thread().name not in consuming_threads
