"""The life of a role's server in this process: start, health, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftloop.rpc.server import RoleServer
from orchestrator.config import OrchestratorSettings
from protos import verifier_pb2, verifier_pb2_grpc
from tests.faults import fakes
from tests.service.sessions import open_verifier
from tests.support.waiting import eventually


@pytest.fixture
def unfrozen_collector() -> Iterator[None]:
    """Unfreezes the garbage collector's objects before and after the test."""
    gc.unfreeze()
    yield
    gc.unfreeze()


async def test_loaded_objects_are_frozen_for_the_garbage_collector(
    tmp_path: Path, unfrozen_collector: None
) -> None:
    """A full collection of loaded objects would stop the process for a quarter of a second."""
    address_file = tmp_path / "address"
    loaded: list[list[int]] = []

    async def start() -> None:
        loaded.extend([] for _ in range(10_000))

    async def stop() -> None:
        loaded.clear()

    settings = OrchestratorSettings(listen="127.0.0.1:0", address_file=address_file)
    running = asyncio.create_task(RoleServer("any", settings).run(start, stop))
    await eventually(address_file.exists)
    frozen = gc.get_freeze_count()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert frozen > 10_000 and not loaded


async def watch_health(channel: grpc.aio.Channel, service: str = "") -> Any:
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
    return call


async def list_services(channel: grpc.aio.Channel) -> Any:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert (await call.read()).list_services_response.service
    return call


async def ready_server() -> RoleServer:
    """A ready server with a scripted verifier and a long grace period."""
    settings = OrchestratorSettings(listen="127.0.0.1:0", grace_period_s=600)
    server = RoleServer("any", settings)
    verifier_pb2_grpc.add_VerifierServicer_to_server(fakes.ScriptedVerifier(), server.server)
    await server.listen()
    await server.ready()
    return server


async def refusal_of_new_call(address: str) -> grpc.StatusCode:
    """The status with which a new call is refused."""
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await verifier_pb2_grpc.VerifierStub(channel).Info(verifier_pb2.VerifierInfoRequest())
    return refused.value.code()


@pytest.mark.parametrize("watch", [watch_health, list_services])
async def test_drain_waits_for_running_calls_but_not_for_health_watchers(
    watch: Callable[[grpc.aio.Channel], Awaitable[Any]],
) -> None:
    """Clients that watch the health never close the call, so a drain must not wait for it."""
    server = await ready_server()
    async with grpc.aio.insecure_channel(server.address) as channel:
        watching = await watch(channel)
        served = verifier_pb2_grpc.VerifierStub(channel).Verify()
        await served.write(open_verifier())
        await served.read()
        draining = asyncio.create_task(server.drain())
        await asyncio.sleep(0.2)
        assert not draining.done()
        await served.write(verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession()))
        async with asyncio.timeout(30):
            assert await served.read() is grpc.aio.EOF
            assert await served.code() is grpc.StatusCode.OK
            await draining
        watching.cancel()


async def test_draining_server_reports_not_serving_at_once() -> None:
    """Otherwise clients and load balancers would go on choosing it while running calls finish."""
    server = await ready_server()
    async with grpc.aio.insecure_channel(server.address) as channel:
        watching = await watch_health(channel, "any")
        served = verifier_pb2_grpc.VerifierStub(channel).Verify()
        await served.write(open_verifier())
        await served.read()
        draining = asyncio.create_task(server.drain())
        async with asyncio.timeout(30):
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert server.busy and not draining.done()
            # gRPC cancels a call that arrives in the moment in which it stops listening
            while (code := await refusal_of_new_call(server.address)) is grpc.StatusCode.CANCELLED:
                await asyncio.sleep(0.01)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert server.busy and not draining.done()
            message = verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession())
            await served.write(message)
            assert await served.read() is grpc.aio.EOF
            await draining
        watching.cancel()
