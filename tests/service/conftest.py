"""Fixtures of the service tests: one role in this process, over loopback gRPC.

It runs the smallest bundled model in float32.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from drafter_service import servicer as drafter
from drafter_service.config import DrafterSettings
from drafter_service.strategies import STRATEGIES
from draftloop.config import bundled_model
from draftloop.model_info import vocabulary_fingerprint
from draftloop.rpc.server import RoleServer
from draftloop.runtime.service import ModelHost
from phrase_store.config import PhraseSettings
from phrase_store.store import PhraseStore
from tests.support.redis_server import RedisServer
from verifier_service import servicer as verifier
from verifier_service.config import VerifierSettings

# A busy machine may pause for longer than the usual timeout of 0.05 s, and phrases that cannot be
# written in time are dropped.
PATIENCE_S = 5.0
MODEL = bundled_model("drafter")
FINGERPRINT = vocabulary_fingerprint(MODEL)
SMALL: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "model": MODEL,
    "dtype": "float32",
    "max_sessions": 4,
    "max_waiting": 1,
    "max_draft_nodes": 16,
    "threads": 1,
}

Served = tuple[grpc.aio.Channel, ModelHost]
Start = Callable[..., AbstractAsyncContextManager[Served]]


@asynccontextmanager
async def _running_service(server: RoleServer, host: ModelHost) -> AsyncIterator[Served]:
    await server.listen()
    await host.start()
    await server.ready()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield channel, host
    finally:
        await server.server.stop(0)
        await host.stop()


@pytest.fixture
def serve_verifier() -> Start:
    """Starts a verifier with SMALL and the given settings, which win."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Served]:
        chosen = VerifierSettings(**{**SMALL, **settings})
        server, host = RoleServer(verifier.SERVICE_NAME, chosen), ModelHost(chosen)
        verifier.register(verifier.VerifierServicer(host), server.server)
        async with _running_service(server, host) as served:
            yield served

    return start


@pytest.fixture
def serve_drafter() -> Start:
    """Starts a drafter with SMALL and the given settings, which win."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Served]:
        chosen = DrafterSettings(**{**SMALL, **settings})
        server = RoleServer(drafter.SERVICE_NAME, chosen)
        host = ModelHost(
            chosen, strategies=list(STRATEGIES), smaller_models=chosen.smaller_model_folders
        )
        store = PhraseStore(chosen)
        drafter.register(drafter.DrafterServicer(host, store, chosen), server.server)
        try:
            async with _running_service(server, host) as served:
                yield served
        finally:
            store.close()

    return start


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


@pytest.fixture
def open_store() -> Iterator[Callable[..., PhraseStore]]:
    """Opens stores as separate processes would, with a long timeout unless another is given."""
    stores: list[PhraseStore] = []

    def opened(url: str, **settings: Any) -> PhraseStore:
        options = {"phrases_mib": 1, "phrases_timeout_s": PATIENCE_S, **settings}
        stores.append(PhraseStore(PhraseSettings(phrases_url=url, **options)))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()
