"""Processes of all roles are killed and frozen at random moments; clients do not notice."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc
import httpx
import pytest

from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.e2e.client import Case, RetryInfo
from tests.faults.fleet import Fleet
from tests.faults.load import Load, stream_by_grpc, stream_by_http
from tests.faults.soak import soak
from tests.support.rich_errors import detail
from tests.support.waiting import until

KILLS = 4
SEED = 4
PATIENCE_S = 180.0


def test_kills_and_freezes_lose_no_request_and_change_no_token(
    fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """A short form of the soak of `make test-faults`."""
    with Load(fleet.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        faults = soak(fleet, KILLS, random.Random(SEED))
    load.tally.assert_none_lost()
    assert faults.total() >= KILLS


def test_missing_verifier_is_reported_at_once_by_grpc_and_http(
    fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """gRPC and HTTP answer with a retry hint; once a verifier is back, all is as before."""
    for name in ("v1", "v2"):
        fleet.processes[name].kill()
    orchestrator = fleet.orchestrators[0]
    with grpc.insecure_channel(orchestrator.address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        request = pb.GenerateOnceRequest(parameters=requests[0].parameters("fused"))
        with pytest.raises(grpc.RpcError) as caught:
            stub.GenerateOnce(request, timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert detail(caught.value, RetryInfo).retry_delay.ToMilliseconds() > 0
    url = f"http://{orchestrator.http_address}"
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, timeout=PATIENCE_S)
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
    until(lambda: httpx.get(f"{url}/ready").status_code == 503, PATIENCE_S)
    fleet.wait_until_complete()
    until(lambda: httpx.get(f"{url}/ready").status_code == 200, PATIENCE_S)
    for stream in (stream_by_grpc, stream_by_http):
        token_ids = [
            token for piece in stream(orchestrator, requests[0], "fused") for token in piece
        ]
        assert token_ids == fault_free_outputs[0]


@pytest.fixture(scope="module")
def impatient_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose orchestrator gives up a verifier after three seconds."""
    flags = {"orchestrator": ["--verify-timeout-s", "3", "--draft-timeout-s", "0.3"]}
    with Fleet(tmp_path_factory.mktemp("hasty"), orchestrators=1, flags=flags) as fleet:
        yield fleet


@pytest.mark.faults
def test_frozen_replicas_are_given_up_and_used_again(
    impatient_fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """A drafter and a verifier are frozen for longer than anything waits for them."""
    with Load(impatient_fleet.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        impatient_fleet.freeze("d1", 10)
        impatient_fleet.freeze("v1", 10)
    load.tally.assert_none_lost()
    assert "verifier session lost" in impatient_fleet.log("orchestrator")
    impatient_fleet.wait_until_free()
