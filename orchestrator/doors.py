"""The orchestrator's gRPC and HTTP servers, started and stopped together."""

from __future__ import annotations

import asyncio

from draftloop.rpc.server import RoleServer
from orchestrator.config import OrchestratorSettings
from orchestrator.front import Front
from orchestrator.gateway.server import HttpServer

LAST_WORDS_S = 1.0  # for ended requests to send their error
HEALTH_INTERVAL_S = 0.25


class OrchestratorServer(RoleServer):
    """The gRPC server and, if there is one, the HTTP server."""

    def __init__(
        self,
        service_name: str,
        settings: OrchestratorSettings,
        http: HttpServer | None,
        front: Front,
    ) -> None:
        super().__init__(service_name, settings, end_calls_grace_s=LAST_WORDS_S)
        self._http = http
        self._front = front
        self._health_task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Raises StartupFailure if an address cannot be listened on."""
        if self._http is not None:
            await self._http.listen()
        await super().listen()

    async def ready(self) -> None:
        """HTTP first, so that both are usable once the gRPC address is published."""
        if self._http is not None:
            self._http.ready()
        await super().ready()
        self._health_task = asyncio.create_task(self._sync_health())

    async def _sync_health(self) -> None:
        """Keeps the gRPC health status equal to `/ready`: whether a verifier is available."""
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            await self.set_serving(ready=self._front.deployment.ready)

    @property
    def busy(self) -> bool:
        """Whether either server has running requests."""
        return super().busy or (self._http is not None and self._http.busy)

    def end_calls(self) -> None:
        """Ends all running requests with an error for their clients."""
        self._front.shutdown.begin_shutdown()

    async def drain(self) -> None:
        """Drains both servers within one grace period; HTTP stops last, so its state is visible."""
        if self._health_task is not None:
            self._health_task.cancel()
        if self._http is not None:
            self._http.refuse()
        await super().drain()
        if self._http is not None:
            await self._http.stop()
