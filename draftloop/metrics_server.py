"""`GET /metrics` for roles that do not serve HTTP otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import start_http_server

from draftloop import logs
from draftloop.errors import StartupFailure
from draftloop.metrics import REGISTRY

log = logs.get(__name__)


@contextlib.contextmanager
def serving_metrics(listen: str) -> Iterator[None]:
    """Serves the registry at `listen` (host:port) on a thread; does nothing if `listen` is empty.

    Raises StartupFailure if the address cannot be bound.
    """
    if not listen:
        yield
        return
    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), REGISTRY)
    except (OSError, UnicodeError) as error:  # UnicodeError: no valid name of a host
        raise StartupFailure(
            f"metrics_listen: {listen} cannot be bound, is it in use? "
            f"Stop what listens there or choose another --metrics-listen ({error})"
        ) from None
    log.info("metrics", address=f"{host}:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
