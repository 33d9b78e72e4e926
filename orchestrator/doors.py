"""Both doors of the orchestrator, opened and closed together."""

from __future__ import annotations

import asyncio

from draftloop.rpc.server import RoleServer
from orchestrator.config import OrchestratorSettings
from orchestrator.front import Front
from orchestrator.gateway.server import HttpServer

LAST_WORDS_S = 1.0  # for who is told to end
LOOK_S = 0.25


class Doors(RoleServer):
    """The gRPC server, and the HTTP server beside it where there is one."""

    def __init__(
        self,
        service_name: str,
        settings: OrchestratorSettings,
        http: HttpServer | None,
        front: Front,
    ) -> None:
        super().__init__(service_name, settings, last_words_s=LAST_WORDS_S)
        self._http = http
        self._front = front
        self._following: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Raises StartupFailure where an address cannot be had."""
        if self._http is not None:
            await self._http.listen()
        await super().listen()

    async def ready(self) -> None:
        """HTTP first: who waits for the gRPC address may then use both."""
        if self._http is not None:
            self._http.ready()
        await super().ready()
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Has the service's health say what `/ready` does: whether a verifier is there."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.welcome(ready=self._front.deployment.ready)

    @property
    def busy(self) -> bool:
        """Whether requests run behind either door."""
        return super().busy or (self._http is not None and self._http.busy)

    def end_calls(self) -> None:
        """Everybody is told."""
        self._front.ending.end_all()

    async def drain(self) -> None:
        """One grace period for both; by HTTP everybody may see how it goes, to its end."""
        if self._following is not None:
            self._following.cancel()
        if self._http is not None:
            self._http.refuse()
        await super().drain()
        if self._http is not None:
            await self._http.stop()
