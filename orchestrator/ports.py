"""Chooses and checks the ports of all roles on one machine, before models are loaded."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping

from draftloop.suggestion import flag_of

FREE = 0  # the port number that means any free port
# Only the launcher needs to know where these roles listen.
INTERNAL = ("verifier_port", "drafter_port")


def free_where_taken(host: str, ports: Mapping[str, int], named: set[str]) -> dict[str, int]:
    """The ports, with FREE for internal ones that are taken, unless the user `named` them."""
    chosen = dict(ports)
    for name in INTERNAL:
        if name in chosen and name not in named and _whose(name, chosen, host):
            chosen[name] = FREE
    return chosen


def port_problems(host: str, ports: Mapping[str, int], named: set[str]) -> Iterator[str]:
    """One line per port that cannot be used, with the reason; `named` ports come first."""
    looked_at = {FREE}
    for name in sorted(ports, key=lambda name: name not in named):
        if (port := ports[name]) not in looked_at:
            looked_at.add(port)
            if problem := _whose(name, ports, host):
                yield f"{name}: {host}:{port} {problem} ({flag_of(name)})"


def _whose(name: str, ports: Mapping[str, int], host: str) -> str:
    """Why this role cannot use its port; empty if it can."""
    port = ports[name]
    if port == FREE:
        return ""
    others = [other for other, taken in ports.items() if taken == port and other != name]
    return f"is that of {others[0]}, too" if others else _problem(host, port)


def _problem(host: str, port: int) -> str:
    """Why no process can listen there, and what to do; empty if one can."""
    try:
        family = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "is in use; stop what listens there or choose another port"
        return f"cannot be listened on: {error}"
    return ""
