"""Under which names a server on loopback is asked: others than its own are a stranger's trick.

A web page may have its own name point to 127.0.0.1 for whoever visits it (DNS rebinding). The
browser then asks the server on its user's machine for the page, which reads the answers. No
firewall is between them; what gives it away is the name, which stands in `Host`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from draftloop.errors import Forbidden
from orchestrator.config import OrchestratorSettings

OF_CONTAINERS = ".docker.internal"  # what they call their host; nobody can register such a name
PORT = re.compile(r":\d*$")


class Hosts:
    """Of a server with these settings; all are welcome where keys or certificates are needed."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self._own = _host(settings.http_listen)
        safe = settings.api_keys is not None or settings.server_tls is not None
        self._only_own = _is_loopback(self._own) and not safe

    def require_own(self, headers: Mapping[str, str]) -> None:
        """Raises Forbidden for a request that came under another name."""
        said = headers.get("host")
        if not self._only_own or said is None:  # which no browser leaves out
            return
        host = _host(said)
        if host != self._own and not _is_loopback(host) and not host.endswith(OF_CONTAINERS):
            raise Forbidden(
                "host: must be localhost or an address of loopback, where no API keys are needed; "
                f"got {said[:80]!r}"
            )


def _host(address: str) -> str:
    """Without the port, and without the brackets of IPv6."""
    return PORT.sub("", address).strip("[]").lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
