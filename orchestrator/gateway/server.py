"""The HTTP server: binds at once, accepts requests once ready, drains before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from draftloop import logs
from draftloop.errors import StartupFailure
from draftloop.request import SamplingParameters
from draftloop.rpc.server import write_atomically
from orchestrator.config import OrchestratorSettings
from orchestrator.front import Front
from orchestrator.gateway.app import build_app
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.connections import Connection
from orchestrator.gateway.gateway import Gateway
from orchestrator.gateway.sampling_defaults import FIELDS, OPENAI, sampling_defaults

BACKLOG = 2048
# Longer than load balancers keep idle connections, so that they do not use one that is closed.
KEEP_ALIVE_TIMEOUT_S = 75
MAX_HEADER_BYTES = 1 << 16

log = logs.get(__name__)


class HttpServer:
    """The HTTP server. Runs on the event loop of the gRPC server, over the same front."""

    def __init__(self, settings: OrchestratorSettings, front: Front) -> None:
        """Raises StartupFailure if the chat template or generation config is unusable."""
        self._settings = settings
        self.address = ""
        template = ChatTemplate(settings.tokenizer, settings.chat_template)
        self.gateway = Gateway(front, template, _defaults(settings))
        tls = settings.server_tls
        config = uvicorn.Config(
            build_app(self.gateway, settings.http_max_body_bytes),
            # Not httptools, which loses the body after an offer to upgrade, as Java's clients send.
            http=Connection, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ws="none", lifespan="off", access_log=False, log_config=None, server_header=False,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S, timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        config.ssl = tls.renewing_context() if tls is not None else None
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Binds and starts. Raises StartupFailure if the address cannot be bound."""
        listening = _bind(self._settings.http_listen)
        host = self._settings.http_listen.rpartition(":")[0]
        self.address = f"{host}:{listening.getsockname()[1]}"
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        log.info("listening for HTTP", address=self.address)

    def ready(self) -> None:
        """Accepts requests from now on, and writes the address file if there is one."""
        self.gateway.ready = True
        if self._settings.http_address_file:
            write_atomically(self._settings.http_address_file, self.address)

    @property
    def busy(self) -> bool:
        """Whether requests run."""
        return len(self._server.server_state.tasks) > 0

    def refuse(self) -> None:
        """Refuses new requests with an error from now on; those that run go on.

        A request whose body has not arrived completely counts as new.
        """
        self.gateway.ready = False
        self.gateway.body_shutdown.begin_shutdown()

    async def stop(self) -> None:
        """Stops the server, and cuts off requests that still run."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: signals are handled by the role, not by this server."""
        yield


def _defaults(settings: OrchestratorSettings) -> SamplingParameters:
    if settings.generation_config == "none":
        return OPENAI
    defaults = sampling_defaults(settings.tokenizer)
    if defaults != OPENAI:
        fields = {name: getattr(defaults, name) for name in FIELDS}
        log.info("sampling as the model's generation_config.json advises", **fields)
    return defaults


def _bind(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartupFailure(
            f"http_listen: {address} cannot be bound, is it in use? "
            f"Stop what listens there or choose another --http-listen ({error})"
        ) from None
