"""Number of sessions that model services hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from orchestrator.launcher import Stack
from protos import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from protos import speculation_pb2 as shared
from tests.support.waiting import until

INFO_S = 20.0


def load_of(address: str, role: str) -> shared.ServiceLoad:
    """The load that the verifier or drafter at this address reports."""
    with grpc.insecure_channel(address) as channel:
        info: Any
        if role == "verifier":
            verifier = verifier_pb2_grpc.VerifierStub(channel)
            info = verifier.Info(verifier_pb2.VerifierInfoRequest(), timeout=INFO_S)
        else:
            drafter = drafter_pb2_grpc.DrafterStub(channel)
            info = drafter.Info(drafter_pb2.DrafterInfoRequest(), timeout=INFO_S)
    load: shared.ServiceLoad = info.load
    return load


def sessions_of(address: str, role: str = "verifier") -> int:
    """Number of running sessions."""
    return int(load_of(address, role).running_sessions)


def open_sessions(stack: Stack) -> int:
    """Number of running sessions of the stack's verifier."""
    return sessions_of(stack.processes["verifier"].address)


def wait_until_serving(verifier: str) -> None:
    """Fails the test if the verifier at this address gets no session within some seconds."""
    until(lambda: sessions_of(verifier), seconds=30)


def wait_for_forwards(address: str, count: int, role: str = "verifier") -> None:
    """Waits until the model service has run `count` more forwards."""
    before = load_of(address, role).forwards
    until(lambda: load_of(address, role).forwards >= before + count, 60)


@contextmanager
def work_stops(stack: Stack, tokens: int) -> Iterator[None]:
    """Fails the test unless sessions that the block opens end long before `tokens` forwards."""
    verifier = stack.processes["verifier"].address
    before = load_of(verifier, "verifier").forwards
    yield
    wait_until_free(stack)
    assert load_of(verifier, "verifier").forwards - before < tokens // 2


def wait_until_free(stack: Stack) -> None:
    """Fails the test if a session is still running after some seconds."""
    until(lambda: not open_sessions(stack))
