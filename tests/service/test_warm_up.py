"""A drafter accepts sessions only after it has compiled what they need."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

from drafter_service import servicer
from drafter_service.config import DrafterSettings
from drafter_service.strategies import STRATEGIES
from drafter_service.warm_up import warm_up
from draftloop.rpc.server import RoleServer
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Task
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.service import ModelHost
from phrase_store.store import PhraseStore
from protos.drafter_pb2 import DrafterInfoRequest
from protos.drafter_pb2_grpc import DrafterStub
from tests.service.conftest import SMALL
from tests.service.sessions import open_drafter, send_and_read
from tests.support.toy_model import load_model, save_model


async def test_drafter_accepts_sessions_only_when_warm() -> None:
    """Orchestrators ask for `Info`, not the health, and would open sessions at once.

    Here as many as there are slots. Warming up holds one slot, so the last session used to find
    none.
    """
    settings = DrafterSettings(**SMALL)
    server = RoleServer(servicer.SERVICE_NAME, settings)
    host, store = ModelHost(settings, strategies=list(STRATEGIES)), PhraseStore(settings)
    servicer.register(servicer.DrafterServicer(host, store, settings), server.server)
    started, release = threading.Event(), threading.Event()

    def wait_for_release(model: LanguageModel) -> Task[None]:
        slot = model.acquire()
        started.set()
        release.wait()
        model.cache.release(slot)
        yield from warm_up(model)

    await server.listen()
    starting = asyncio.create_task(host.start(wait_for_release))
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = DrafterStub(channel)
        try:
            await asyncio.to_thread(started.wait)
            with pytest.raises(grpc.aio.AioRpcError) as early:
                await stub.Info(DrafterInfoRequest())
            assert early.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            release.set()
        await starting
        calls = [stub.Draft() for _ in range(settings.max_sessions)]
        await asyncio.gather(*(send_and_read(call, open_drafter()) for call in calls))
        for call in calls:
            call.cancel()
    await server.server.stop(0)
    await host.stop()
    store.close()


@pytest.mark.parametrize("limits", [
    {"context_length": 1}, {"context_length": 2}, {"context_length": 3}, {"max_draft_nodes": 1},
], ids=str)  # fmt: skip
def test_drafter_with_small_limits_can_start(tmp_path: Path, limits: dict[str, int]) -> None:
    engine, model = Engine(), load_model(save_model(tmp_path), **limits)
    try:
        engine.submit(warm_up(model)).result()
    finally:
        engine.stop()
    assert model.cache.used_rows == 0
