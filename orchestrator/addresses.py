"""Addresses of a role's replicas: fixed ones, and DNS names that resolve to several."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from draftloop import logs
from draftloop.config import comma_separated

DNS_PREFIX = "dns:///"

# Host and port to IP addresses. Raises OSError or UnicodeError if the name cannot be resolved.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica listens, and the name that its certificate must have; "": the host name."""

    target: str
    server_name: str = ""


def check_addresses(text: str) -> None:
    """Raises ValueError if an entry is neither host:port nor dns:///name:port."""
    for entry in comma_separated(text):
        host, _, port = entry.removeprefix(DNS_PREFIX).rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ValueError(
                f"must be host:port or {DNS_PREFIX}name:port, separated by commas, with ports from "
                f"1 to 65535; got {entry!r}"
            )


async def look_up(host: str, port: int) -> list[str]:
    """IP addresses from the system's resolver, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in addresses]


class AddressBook:
    """The address entries of a setting. Every `read` resolves names anew."""

    def __init__(self, entries: Iterable[str], resolve: Resolve = look_up) -> None:
        self._entries = tuple(entries)
        self._resolve = resolve
        self._last: dict[str, list[Address]] = {}  # last successful result for each name
        self._unresolved: set[str] = set()

    async def read(self) -> list[Address]:
        """All current addresses. A name that cannot be resolved keeps its last ones."""
        addresses: dict[Address, None] = {}
        for entry in self._entries:
            entry_addresses = (
                await self._resolve_entry(entry)
                if entry.startswith(DNS_PREFIX)
                else [Address(entry)]
            )
            addresses.update(dict.fromkeys(entry_addresses))
        return list(addresses)

    async def _resolve_entry(self, entry: str) -> list[Address]:
        name, _, port = entry.removeprefix(DNS_PREFIX).rpartition(":")
        try:
            ips = await self._resolve(name.strip("[]"), int(port))
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            if entry not in self._unresolved:
                log.warning("name not found", name=entry, reason=str(error))
            self._unresolved.add(entry)
            return self._last.get(entry, [])
        self._unresolved.discard(entry)
        targets = sorted({_with_port(ip, port) for ip in ips})
        self._last[entry] = [Address(target, server_name=name) for target in targets]
        return self._last[entry]


def _with_port(ip: str, port: str) -> str:
    address = ipaddress.ip_address(ip.partition("%")[0])
    return f"[{ip}]:{port}" if address.version == 6 else f"{ip}:{port}"
