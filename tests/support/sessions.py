"""How many sessions a stack's verifier holds."""

from __future__ import annotations

import grpc

from orchestrator.launcher import Stack
from protos import verifier_pb2, verifier_pb2_grpc
from tests.support.waiting import until


def sessions_of(verifier: str) -> int:
    """As the verifier at this address itself says."""
    with grpc.insecure_channel(verifier) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        return int(stub.Info(verifier_pb2.VerifierInfoRequest()).load.running_sessions)


def open_sessions(stack: Stack) -> int:
    """Those of the stack's verifier."""
    return sessions_of(stack.processes["verifier"].address)


def wait_until_serving(verifier: str) -> None:
    """Fails the test where the verifier at this address gets no session within some seconds."""
    until(lambda: sessions_of(verifier), seconds=30)


def wait_until_free(stack: Stack) -> None:
    """Fails the test where a session is left after some seconds."""
    until(lambda: not open_sessions(stack))
