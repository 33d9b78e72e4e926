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


def choose_ports(host: str, ports: Mapping[str, int], user_set: set[str]) -> dict[str, int]:
    """The ports, with FREE for internal ones that are taken, unless the user `user_set` them."""
    chosen = dict(ports)
    for name in INTERNAL:
        if name in chosen and name not in user_set and _port_problem(name, chosen, host):
            chosen[name] = FREE
    return chosen


def port_problems(host: str, ports: Mapping[str, int], user_set: set[str]) -> Iterator[str]:
    """One line per port that cannot be used, with the reason; `user_set` ports come first."""
    checked = {FREE}
    for name in sorted(ports, key=lambda name: name not in user_set):
        if (port := ports[name]) not in checked:
            checked.add(port)
            if problem := _port_problem(name, ports, host):
                yield f"{name}: {host}:{port} {problem} ({flag_of(name)})"


def _port_problem(name: str, ports: Mapping[str, int], host: str) -> str:
    """Why this role cannot use its port; empty if it can."""
    port = ports[name]
    if port == FREE:
        return ""
    roles_with_port = [
        other for other, other_port in ports.items() if other_port == port and other != name
    ]
    return f"is that of {roles_with_port[0]}, too" if roles_with_port else _bind_problem(host, port)


def _bind_problem(host: str, port: int) -> str:
    """Why no process can listen there, and what to do; empty if one can."""
    try:
        family = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port))
    except (OSError, UnicodeError) as error:  # UnicodeError: no valid name of a host
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return "is in use; stop what listens there or choose another port"
        return f"cannot be listened on: {error}"
    return ""
