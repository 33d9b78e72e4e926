"""Discovery over loopback gRPC: replicas join, leave, restart, have another model or hang."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest
from structlog.testing import capture_logs

from draftloop.errors import Mismatch
from draftloop.model_info import ModelInfo
from draftloop.rpc import convert
from draftloop.rpc.channel import open_channel
from orchestrator import discovery as discovery_module
from orchestrator.addresses import Address, AddressBook
from orchestrator.clients import drafter_info
from orchestrator.discovery import Discovery, ServiceInfo
from orchestrator.prefix_index import BLOCK_TOKENS
from protos import drafter_pb2_grpc
from tests.faults import fakes
from tests.support.model_info import model_info
from tests.support.ports import quiet_port
from tests.support.waiting import eventually

FIRST = model_info(instance_id="first")
add = drafter_pb2_grpc.add_DrafterServicer_to_server


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the intervals of discovery to hundredths of a second.

    The time for an answer is lengthened: on a busy machine a first connection takes seconds.
    """
    for name in ("RESOLVE_INTERVAL_S", "POLL_INTERVAL_S", "POLL_MISSING_INTERVAL_S"):
        monkeypatch.setattr(discovery_module, name, 0.02)
    monkeypatch.setattr(discovery_module, "INFO_TIMEOUT_S", 30.0)


def drafter_with(model: ModelInfo | None = None) -> fakes.FakeDrafter:
    """A drafter with the given information, by default that of a new process."""
    model = model or model_info(instance_id=uuid.uuid4().hex)
    return fakes.FakeDrafter(convert.model_info_to_pb(model), fakes.no_draft)


class Pods:
    """The changing addresses behind a headless service name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] = addresses

    async def read(self) -> list[Address]:
        return [Address(address) for address in self.addresses]


def channel_to(address: Address) -> grpc.aio.Channel:
    return open_channel(address.target, 1 << 20)


def require_same_model_as_first(model: ModelInfo, address: str) -> None:
    FIRST.require_same_model(model)


@asynccontextmanager
async def discovery_of(addresses: AddressBook | Pods) -> AsyncIterator[Discovery]:
    discovery = Discovery(
        "drafter",
        addresses,  # type: ignore[arg-type]
        open_channel=channel_to,
        ask_info=drafter_info,
        require_compatible=require_same_model_as_first,
    )
    try:
        yield discovery
    finally:
        await discovery.stop()


def known_addresses(discovery: Discovery) -> set[str]:
    return {replica.address for replica in discovery.replicas.by_preference()}


async def test_dns_name_is_resolved_by_the_system() -> None:
    async with fakes.listening(add, drafter_with(FIRST)) as address:
        port = address.rpartition(":")[2]
        async with discovery_of(AddressBook([f"dns:///localhost:{port}"])) as discovery:
            await discovery.poll_once()
            assert known_addresses(discovery) == {address}
            assert discovery.replicas.model == FIRST


async def test_replicas_join_and_leave_with_their_addresses() -> None:
    """A session goes on when its replica is no longer listed; the channel is closed after it."""
    async with (
        fakes.listening(add, drafter_with()) as old,
        fakes.listening(add, drafter_with()) as new,
    ):
        pods = Pods(old)
        async with discovery_of(pods) as discovery:
            await discovery.poll_once()
            discovery.start_polling()
            (replica,) = discovery.replicas.by_preference()
            replica.sessions += 1
            pods.addresses = [new]
            await eventually(lambda: known_addresses(discovery) == {new})
            await drafter_info(replica.channel, 5)
            replica.sessions -= 1
            await eventually(lambda: replica not in discovery._leaving)
            with pytest.raises(grpc.aio.UsageError):
                await drafter_info(replica.channel, 5)


async def test_dead_replica_leaves_and_returning_one_is_used_again() -> None:
    port, successor = quiet_port(), drafter_with(model_info(instance_id="second"))
    async with (
        discovery_of(pods := Pods()) as discovery,
        fakes.listening(add, drafter_with()) as second,
    ):
        async with fakes.listening(add, drafter_with(), port) as address:
            pods.addresses = [address, second]
            await discovery.poll_once()
            discovery.start_polling()
            assert known_addresses(discovery) == {address, second}
            for replica in discovery.replicas.by_preference():
                replica.record_failure()
        await eventually(lambda: known_addresses(discovery) == {second})
        async with fakes.listening(add, successor, port):
            await eventually(lambda: known_addresses(discovery) == {address, second})
            failures = {each.address: each.failures for each in discovery.replicas.by_preference()}
            assert failures == {address: 0, second: 1}


async def test_restarted_replica_has_no_cached_prefixes() -> None:
    """A restarted replica has no cached prefixes. It used to get sessions for its predecessor's."""
    text = list(range(2 * BLOCK_TOKENS))
    info = convert.model_info_to_pb(model_info(instance_id="first", prefix_caching=True))
    service = fakes.FakeDrafter(info, fakes.no_draft)
    async with fakes.listening(add, service) as address, discovery_of(pods := Pods()) as discovery:
        pods.addresses = [address]
        await discovery.poll_once()
        (replica,) = discovery.replicas
        discovery.replicas.record_prefix(replica, text, "a")
        await discovery.poll_once()
        assert discovery.replicas.cached_tokens(text, "a") == len(text)
        info.instance_id = "second"
        await discovery.poll_once()
        assert discovery.replicas.cached_tokens(text, "a") == 0


async def test_process_with_two_addresses_is_one_replica() -> None:
    """A name may have an IPv4 and an IPv6 address; if one fails, the other takes its place."""
    async with (
        fakes.listening(add, drafter_with(FIRST)) as second,
        discovery_of(pods := Pods()) as discovery,
    ):
        async with fakes.listening(add, drafter_with(FIRST)) as address:
            pods.addresses = [address, second]
            await discovery.poll_once()
            discovery.start_polling()
            assert (
                known_addresses(discovery) == {address}
                and "the process at" in discovery.missing[second]
            )
        await eventually(lambda: known_addresses(discovery) == {second})


async def test_replica_with_a_closed_connection_is_tried_last() -> None:
    """The closed connection is the only sign; a session sent there would wait for its timeout."""
    async with (
        discovery_of(pods := Pods()) as discovery,
        fakes.listening(add, drafter_with()) as second,
    ):
        async with fakes.listening(add, drafter_with()) as address:
            pods.addresses = [address, second]
            await discovery.poll_once()
        await eventually(lambda: not all(replica.is_connected for replica in discovery.replicas))
        firsts = {discovery.replicas.by_preference()[0].address for _ in range(50)}
        assert firsts == {second}
        assert known_addresses(discovery) == {address, second}


async def test_replica_with_another_model_is_refused_and_logged_once() -> None:
    other_model = drafter_with(model_info(model_fingerprint="cc", instance_id="stranger"))
    with capture_logs() as lines:
        async with (
            fakes.listening(add, drafter_with()) as good,
            fakes.listening(add, other_model) as bad,
            discovery_of(Pods(bad, good)) as discovery,
        ):
            await discovery.poll_once()
            discovery.start_polling()
            await asyncio.sleep(0.3)
            assert known_addresses(discovery) == {good}
            assert "cc" in discovery.missing[bad]
    refusals = [line for line in lines if line["event"] == "drafter refused"]
    assert len(refusals) == 1 and refusals[0]["address"] == bad
    assert "aa" in refusals[0]["reason"] and "cc" in refusals[0]["reason"]


async def test_first_look_raises_when_no_replica_fits() -> None:
    async with (
        fakes.listening(add, drafter_with(model_info(model_fingerprint="cc"))) as bad,
        discovery_of(Pods(bad, "127.0.0.1:1")) as discovery,
    ):
        with pytest.raises(Mismatch, match="cc"):
            await discovery.poll_once()


async def test_silent_replica_does_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery_module, "INFO_TIMEOUT_S", 0.5)
    async with (
        fakes.black_hole() as unanswering,
        fakes.listening(add, drafter_with()) as good,
        discovery_of(Pods(unanswering, good)) as discovery,
    ):
        await discovery.poll_once()
        discovery.start_polling()
        await eventually(
            lambda: known_addresses(discovery) == {good} and set(discovery.missing) == {unanswering}
        )


async def test_replica_that_stops_answering_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_with()
    async with (
        fakes.listening(add, drafter) as address,
        discovery_of(Pods(address)) as discovery,
    ):
        await discovery.poll_once()
        monkeypatch.setattr(discovery_module, "INFO_TIMEOUT_S", 0.5)
        discovery.start_polling()
        drafter.info_delay_s = 3600
        await eventually(lambda: not known_addresses(discovery))
        drafter.info_delay_s = 0
        await eventually(lambda: known_addresses(discovery) == {address})


async def test_unreadable_answer_does_not_stop_discovery() -> None:
    """An unreadable answer may raise any exception; the next answer counts."""
    answers = iter([AttributeError("no field"), ValueError("no number")])

    async def ask(channel: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
        if (problem := next(answers, None)) is not None:
            raise problem
        return await drafter_info(channel, timeout_s)

    async with (
        fakes.listening(add, drafter_with()) as address,
        discovery_of(Pods(address)) as discovery,
    ):
        discovery._ask_info = ask
        with capture_logs() as lines:
            await discovery.poll_once()
            assert not discovery.replicas and "AttributeError" in discovery.missing[address]
            discovery.start_polling()
            await eventually(lambda: known_addresses(discovery) == {address})
        assert sum(line["event"] == "unforeseen error" for line in lines) == 2
