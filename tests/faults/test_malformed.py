"""Malformed bytes over gRPC and HTTP are refused as the sender's mistake."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos import drafter_pb2, generation_pb2, verifier_pb2
from tests.e2e.client import BadRequest, Case
from tests.faults.fleet import Fleet
from tests.support.rich_errors import detail

FEW = settings(
    max_examples=10, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
METHODS = [
    (name, method)
    for name, module, service in (
        ("o1", generation_pb2, "Generation"),
        ("v1", verifier_pb2, "Verifier"),
        ("d1", drafter_pb2, "Drafter"),
    )
    for method in module.DESCRIPTOR.services_by_name[service].methods
]
EVERY = pytest.mark.parametrize(("name", "method"), METHODS, ids=[m.full_name for _, m in METHODS])
STREAMING = {"Verify", "Draft"}
# A field whose length says 127 bytes, of which none follow.
TRUNCATED = b"\x0a\x7f"
CALL_S = 60.0
# Most random bytes that are a valid message request something impossible; they get no more time.
MUTATED_S = 2.0
FORESEEN = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


@pytest.fixture(scope="module")
def channels(shared_fleet: Fleet) -> Iterator[dict[str, grpc.Channel]]:
    names = {name for name, _ in METHODS}
    opened = {
        name: grpc.insecure_channel(shared_fleet.processes[name].address) for name in sorted(names)
    }
    yield opened
    for channel in opened.values():
        channel.close()


def send_bytes(
    channel: grpc.Channel, method: Any, data: bytes, seconds: float
) -> grpc.RpcError | None:
    """Sends these bytes as the message; returns the error, if any."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.name in STREAMING:
            for _ in channel.stream_stream(path)(iter([data]), timeout=seconds):
                pass
        elif method.name == "Generate":
            for _ in channel.unary_stream(path)(data, timeout=seconds):
                pass
        else:
            channel.unary_unary(path)(data, timeout=seconds)
    except grpc.RpcError as error:
        return error
    return None


@EVERY
def test_malformed_message_is_refused_as_the_senders_error(
    fleet: Fleet, channels: dict[str, grpc.Channel], name: str, method: Any
) -> None:
    error = send_bytes(channels[name], method, TRUNCATED, CALL_S)
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    assert detail(error, BadRequest).field_violations[0].field == "request"
    assert "2 other bytes" in error.details()


@EVERY
def test_random_bytes_cause_no_unexpected_error(
    fleet: Fleet, channels: dict[str, grpc.Channel], name: str, method: Any, requests: list[Case]
) -> None:
    """Random bytes, and a valid request with some bytes changed, cause no unexpected error."""
    whole = method.input_type._concrete_class
    valid = whole()
    if method.name.startswith("Generate"):
        valid.parameters.CopyFrom(requests[0].parameters("fused"))
    valid_bytes = valid.SerializeToString()

    @FEW
    @given(st.binary(max_size=40), st.integers(0, max(len(valid_bytes) - 1, 0)))
    def some(data: bytes, at: int) -> None:
        for mutated in (data, valid_bytes[:at] + data[:3] + valid_bytes[at + 3 :]):
            error = send_bytes(channels[name], method, mutated, MUTATED_S)
            assert error is None or error.code() in FORESEEN, (mutated, error)

    some()
    for role in ("orchestrator", "drafter", "verifier"):
        assert "unforeseen error" not in fleet.log(role)


ANSWERED = (b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4")
RAW = [b"", b"\x00" * 100, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
       b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
       b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
       b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"]  # fmt: skip


def test_malformed_http_is_answered_or_disconnected(fleet: Fleet) -> None:
    """Never with a 5xx; a request that stops midway holds nothing while it waits for the rest."""
    orchestrator = fleet.orchestrators[0]
    host, _, port = orchestrator.http_address.rpartition(":")

    def send(data: bytes) -> None:
        with socket.create_connection((host, int(port)), timeout=CALL_S) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer == b"" or answer.startswith(ANSWERED), answer

    @FEW
    @given(st.binary(max_size=60))
    def any_bytes(data: bytes) -> None:
        send(data)
        send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n")

    for data in RAW:
        send(data)
    any_bytes()
    assert httpx.get(f"http://{orchestrator.http_address}/health").status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_random_http_bodies_cause_no_server_error(fleet: Fleet, path: str) -> None:
    """`tests/e2e/test_http_fuzz.py` sends bodies that are closer to valid ones."""
    url = f"http://{fleet.orchestrators[0].http_address}{path}"
    kinds = itertools.cycle(("application/json", "text/plain", "application/json; charset=x"))

    @FEW
    @given(st.binary(max_size=60))
    def any_body(body: bytes) -> None:
        answer = httpx.post(url, content=body, headers={"Content-Type": next(kinds)})
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["message"]

    any_body()
