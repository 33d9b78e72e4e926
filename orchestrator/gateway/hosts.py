"""Checks the host name of requests to a server on loopback, against DNS rebinding.

A web page can make its own name point to 127.0.0.1 for its visitors. Its requests then go to the
server on the visitor's machine, and the page can read the answers. No firewall is in between; only
the name in `Host`, which is the page's, gives it away.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from draftloop.errors import Forbidden
from orchestrator.config import OrchestratorSettings

CONTAINER_HOST_SUFFIX = (
    ".docker.internal"  # containers' names of their host; nobody can register one
)
PORT = re.compile(r":\d*$")


class Hosts:
    """Checks names only if the server listens on loopback and needs neither API keys nor TLS."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self._own_host = _host(settings.http_listen)
        safe = settings.api_keys is not None or settings.server_tls is not None
        self._requires_own_host = _is_loopback(self._own_host) and not safe

    def require_own_host(self, headers: Mapping[str, str]) -> None:
        """Raises Forbidden if the request came under a name that is not the server's own."""
        header = headers.get("host")
        if not self._requires_own_host or header is None:  # browsers always send it
            return
        host = _host(header)
        if (
            host != self._own_host
            and not _is_loopback(host)
            and not host.endswith(CONTAINER_HOST_SUFFIX)
        ):
            raise Forbidden(
                "host: must be localhost or an address of loopback, where no API keys are needed; "
                f"got {header[:80]!r}"
            )


def _host(address: str) -> str:
    """The host of an address, without the port and without IPv6's brackets."""
    return PORT.sub("", address).strip("[]").lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
