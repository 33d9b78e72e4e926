"""How many sessions a stack's verifier holds."""

from __future__ import annotations

import time

import grpc
import pytest

from orchestrator.launcher import Stack
from protos import verifier_pb2, verifier_pb2_grpc


def open_sessions(stack: Stack) -> int:
    """As the verifier itself says."""
    with grpc.insecure_channel(stack.processes["verifier"].address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)
        return int(stub.Info(verifier_pb2.VerifierInfoRequest()).load.running_sessions)


def wait_until_free(stack: Stack) -> None:
    """Fails the test where a session is left after some seconds."""
    for _ in range(200):
        if not open_sessions(stack):
            return
        time.sleep(0.05)
    pytest.fail("the verifier still holds a session")
