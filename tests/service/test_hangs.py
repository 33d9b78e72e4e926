"""A service ends if its forward pass hangs, but not if the process was only stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from draftloop.runtime import service
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import Start
from tests.service.sessions import open_verifier, send_and_read

WAIT_S = 60.0


async def test_service_ends_when_a_forward_hangs(
    serve_verifier: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would show it: health checks are answered outside the engine."""
    ended = asyncio.Event()
    reasons: list[str] = []

    def end(error: BaseException, failures: int) -> None:
        reasons.append(str(error))
        ended.set()

    monkeypatch.setattr(service, "HANGS_S", 0.5)
    monkeypatch.setattr(service, "_exit_process", end)
    release = threading.Event()
    async with serve_verifier() as (channel, host):
        run = host.model._run

        def hang(forwards: Any) -> Any:
            release.wait(WAIT_S)
            return run(forwards)

        monkeypatch.setattr(host.model, "_run", hang)
        call = VerifierStub(channel).Verify()
        opening = asyncio.create_task(send_and_read(call, open_verifier()))
        await asyncio.wait_for(ended.wait(), WAIT_S)
        release.set()
        await opening
        call.cancel()
    assert reasons == ["a forward has run for 0.5 s"]


async def test_service_stopped_and_continued_within_a_forward_goes_on(
    serve_verifier: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-Z or a paused container, only the clock suggests that the forward pass hangs."""
    reasons: list[str] = []
    monkeypatch.setattr(service, "HANGS_S", 10.0)
    monkeypatch.setattr(service, "_exit_process", lambda error, _: reasons.append(str(error)))
    async with serve_verifier() as (channel, host):
        run = host.model._run

        def stopped(forwards: Any) -> Any:
            assert host.engine.forward_began is not None
            host.engine.forward_began -= 3600
            time.sleep(1.5)  # time for one or two checks
            return run(forwards)

        monkeypatch.setattr(host.model, "_run", stopped)
        call = VerifierStub(channel).Verify()
        assert (await send_and_read(call, open_verifier())).verdict.emitted_token_ids
        call.cancel()
    assert not reasons
