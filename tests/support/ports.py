"""Ports that are chosen before anything listens on them."""

from __future__ import annotations

import random
import socket

# Below the ranges from which systems choose free ports and ports of outgoing connections.
_QUIET = iter(random.sample(range(20_000, 32_000), 12_000))


def quiet_port() -> int:
    """A free port on loopback that stays free between two servers; never the same one twice."""
    for port in _QUIET:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is left")
