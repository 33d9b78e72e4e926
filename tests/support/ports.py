"""Ports that are named before anybody listens on them."""

from __future__ import annotations

import random
import socket

# Below those that systems give to who asks for any and to outgoing connections.
_QUIET = iter(random.sample(range(20_000, 32_000), 12_000))


def quiet_port() -> int:
    """A port of loopback that is free and stays so, also between two servers; none comes twice."""
    for port in _QUIET:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is left")
