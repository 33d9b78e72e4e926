"""The HTTP API in this process, without services; a description stands for the verifier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from draftloop.model_info import ModelInfo
from orchestrator.config import OrchestratorSettings
from orchestrator.deployment import Deployment
from orchestrator.front import Front
from orchestrator.gateway.app import build_app
from orchestrator.gateway.server import HttpServer
from tests.support.model_info import model_info


class Described(Deployment):
    """A deployment without a verifier, but with a description of one."""

    model = model_info(context_length=2048)

    @property
    def verifier(self) -> ModelInfo:
        """The description."""
        return self.model


@asynccontextmanager
async def gateway(
    keys: Path | None = None, host: str = "localhost", **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Described]]:
    """A client that uses `host` as its host name, and the deployment behind the API."""
    deployment = Described(OrchestratorSettings(api_keys=keys, verifiers="127.0.0.1:1", **settings))
    served = HttpServer(deployment.settings, Front(deployment)).gateway
    served.ready = True
    app = httpx.ASGITransport(build_app(served, deployment.settings.http_max_body_bytes))
    try:
        async with httpx.AsyncClient(transport=app, base_url=f"http://{host}") as client:
            yield client, deployment
    finally:
        await deployment.stop()
