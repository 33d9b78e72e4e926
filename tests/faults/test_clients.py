"""Clients that disappear without closing, or that read as slowly as they can."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.e2e.client import Case
from tests.faults.fleet import Fleet, Orchestrator
from tests.faults.load import DOORS, Broken, Load, Pieces, stream_by_grpc
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until

LONG = 1500
PATIENCE_S = 240.0
SMALL_BUFFER = 4096
MOST_GROWTH_BYTES = 128 << 20


@dataclass
class Proxies:
    """The addresses of proxies in front of an orchestrator's gRPC and HTTP ports."""

    address: str
    http_address: str


def test_sessions_of_vanished_clients_are_freed(
    fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """Four streams each by gRPC and HTTP are reset: their sessions are freed, others go on."""
    orchestrator = fleet.orchestrators[0]
    with ExitStack() as stack:
        wires = [TcpProxy(orchestrator.address), TcpProxy(orchestrator.http_address)]
        for wire in wires:
            stack.enter_context(wire)
        proxies = Proxies(*(wire.address for wire in wires))
        streams = [
            open_stream(proxies, Case(case.prompt, LONG, case.sampling), "fused")
            for case, open_stream in zip(requests[:8], DOORS * 4, strict=True)
        ]
        for stream in streams:
            assert next(stream) is not None
        with Load([orchestrator], requests[8:], fault_free_outputs[8:], once=True) as load:
            for wire in wires:
                wire.reset()
            for stream in streams:
                with pytest.raises(Broken):
                    list(stream)
        load.tally.assert_none_lost()
    fleet.wait_until_free()


@pytest.mark.faults
def test_unread_streams_end_and_free_their_sessions(
    fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """Generations for clients that do not read end and free their sessions; memory is bounded."""
    orchestrator = fleet.orchestrators[0]
    before = fleet.memory()["o1"]
    prompts = ["import os", "def main():"]
    with ExitStack() as stack:
        slow = [stack.enter_context(SlowReader(orchestrator, prompt)) for prompt in prompts]
        calls = [call_with_unread_messages(stack, orchestrator, case) for case in requests[:2]]
        with Load([orchestrator], requests, fault_free_outputs, once=True) as load:
            pass
        load.tally.assert_none_lost()
        until(lambda: not fleet.sessions("v1") + fleet.sessions("v2"), PATIENCE_S)
        assert fleet.memory()["o1"] - before < MOST_GROWTH_BYTES
        for reader in slow:
            assert reader.tokens() == LONG
        for case, call in zip(requests[:2], calls, strict=True):
            token_ids = [token for piece in call for token in piece.token_ids]
            assert token_ids == all_tokens(
                stream_by_grpc(orchestrator, _long(case), "autoregressive")
            )


class SlowReader:
    """Requests a long HTTP stream with large events and reads nothing until `tokens`."""

    def __init__(self, orchestrator: Orchestrator, prompt: str) -> None:
        host, _, port = orchestrator.http_address.rpartition(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((host, int(port)))
        body = json.dumps({
            "messages": [{"role": "user", "content": prompt}], "max_tokens": LONG, "seed": 1,
            "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20,
            "stream_options": {"include_usage": True}, "speculative": {"strategy": "prompt_lookup"},
        })  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall((head + body).encode())

    def __enter__(self) -> SlowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def tokens(self) -> int:
        """Reads the whole stream; the number of tokens by the usage at its end."""
        whole = b"".join(iter(lambda: self._socket.recv(1 << 16), b"")).decode()
        events = [line.strip()[6:] for line in whole.splitlines() if line.startswith("data: {")]
        usages: Iterator[Any] = (json.loads(event).get("usage") for event in reversed(events))
        return int(next(usage for usage in usages if usage)["completion_tokens"])


def call_with_unread_messages(
    stack: ExitStack, orchestrator: Orchestrator, case: Case
) -> Iterator[Any]:
    """The messages of a running call, of which only the first has been read."""
    channel = stack.enter_context(grpc.insecure_channel(orchestrator.address))
    parameters = _long(case).parameters("autoregressive", ignore_eos=True)
    call = generation_pb2_grpc.GenerationStub(channel).Generate(
        pb.GenerateRequest(parameters=parameters)
    )
    return itertools.chain([next(call)], call)


def _long(case: Case) -> Case:
    return Case(case.prompt, LONG, case.sampling)


def all_tokens(pieces: Pieces) -> list[int]:
    return [token for piece in pieces for token in piece]
