"""Addresses of replicas: fixed ones, and names with several."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from draftloop.errors import StartupFailure
from orchestrator.addresses import Address, AddressBook, check_addresses
from orchestrator.config import OrchestratorSettings


class FakeResolver:
    """A resolver whose answer the test can change."""

    def __init__(self, *ips: str) -> None:
        self.ips: Sequence[str] | OSError = ips

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("verifier.llm", 50053)
        if isinstance(self.ips, OSError):
            raise self.ips
        return self.ips


ENTRY = "dns:///verifier.llm:50053"


def resolved_addresses(*targets: str) -> list[Address]:
    return [Address(target, server_name="verifier.llm") for target in targets]


async def test_name_resolves_to_all_its_current_addresses() -> None:
    names = FakeResolver("10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.2")
    book = AddressBook([ENTRY, "10.0.0.9:50053", "10.0.0.9:50053"], names)
    of_name = resolved_addresses("10.0.0.1:50053", "10.0.0.2:50053", "[fd00::1]:50053")
    assert await book.read() == [*of_name, Address("10.0.0.9:50053")]
    names.ips = ["10.0.0.3"]
    assert await book.read() == [*resolved_addresses("10.0.0.3:50053"), Address("10.0.0.9:50053")]


async def test_addresses_are_kept_when_name_resolution_fails() -> None:
    """A resolver that fails for a moment must not drop replicas that are alive."""
    names = FakeResolver("10.0.0.1")
    book = AddressBook([ENTRY], names)
    names.ips = socket.gaierror(socket.EAI_AGAIN, "try again")
    assert await book.read() == []
    names.ips = ["10.0.0.1"]
    assert await book.read() == resolved_addresses("10.0.0.1:50053")
    names.ips = socket.gaierror(socket.EAI_NONAME, "unknown")
    assert await book.read() == resolved_addresses("10.0.0.1:50053")


async def test_unresolvable_name_is_logged_once() -> None:
    names = FakeResolver()
    names.ips = socket.gaierror(socket.EAI_NONAME, "unknown")
    book = AddressBook([ENTRY], names)
    for _ in range(2):
        with capture_logs() as lines:
            await book.read()
            await book.read()
        assert [line["event"] for line in lines] == ["name not found"]
        names.ips = ["10.0.0.1"]
        await book.read()
        names.ips = socket.gaierror(socket.EAI_NONAME, "unknown again")


async def test_ipv6_brackets_are_stripped_before_resolution() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [host] if host == "fd00::1" else []

    assert await AddressBook(["dns:///[fd00::1]:5"], resolve).read() == [
        Address("[fd00::1]:5", server_name="[fd00::1]")
    ]


@pytest.mark.parametrize(
    "text", ["a:1", "10.0.0.1:50053, b.c:2", "dns:///name:1", "[::1]:65535", "", ENTRY + ",d:4"]
)
def test_valid_addresses_are_accepted(text: str) -> None:
    check_addresses(text)


@pytest.mark.parametrize(
    "text", ["a", "a:", ":1", "dns://name:1", "dns:///name", "a:70000", "a:0", "http://a:1"]
)
def test_invalid_addresses_fail_startup(text: str) -> None:
    with pytest.raises(StartupFailure, match="drafters: must be host:port or dns:///name:port"):
        OrchestratorSettings.from_command_line(["--drafters", text])
