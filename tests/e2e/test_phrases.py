"""Phrases over a real Redis change the speed of replicas and never a token."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis

from draftloop.config import bundled_model
from draftloop.model_info import model_fingerprint
from draftloop.phrase import Phrase
from orchestrator.launcher import Stack
from orchestrator.role_process import RoleProcess
from orchestrator.stack_config import StackConfig
from phrase_store.namespace import namespace_name
from phrase_store.records import encode_all
from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import Case, Client, first_difference, held_out_prompts
from tests.e2e.conftest import SAMPLINGS, UNFILTERED
from tests.e2e.replica import RECEIVED, Replica, metrics_addresses
from tests.e2e.streams import Streams
from tests.e2e.ways import BOTH, WAYS, Way, ouroboros_with
from tests.support.forked import ForkedRole, ForkedStack
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

CALL_TIMEOUT_S = 120.0
TOGETHER = 8
SIMILAR = 10
# How much longer than usual a stream may pause when Redis is gone.
STALL_S = 0.05
TRIES = 10
ACTS_AT = 8
WAITING, FAILURES = "phrases_waiting", "phrase_log_failures_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="module")
def metrics() -> dict[str, str]:
    """The metrics addresses of the first replica."""
    return metrics_addresses()


@pytest.fixture(scope="module")
def replica(server: RedisServer, metrics: dict[str, str]) -> Iterator[Stack]:
    """A verifier, and the first orchestrator with its drafter."""
    config = StackConfig(
        port=0, http_port=0, drafter_port=0, verifier_port=0, dtype="float32",
        start_timeout_s=240, phrases_url=server.url,
        orchestrator_flags=("--metrics-listen", metrics["orchestrator"]),
        drafter_flags=("--metrics-listen", metrics["drafter"]),
    )  # fmt: skip
    with ForkedStack(config) as running:
        yield running


@pytest.fixture(scope="module")
def first(replica: Stack, metrics: dict[str, str]) -> Iterator[Replica]:
    client = Replica(replica.address, metrics)
    yield client
    client.channel.close()


@pytest.fixture(scope="module")
def second(
    replica: Stack, server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replica]:
    """A second orchestrator with its own drafter, on the same Redis."""
    folder, metrics = tmp_path_factory.mktemp("second"), metrics_addresses()
    common = ["--listen", "127.0.0.1:0", "--phrases-url", server.url, "--metrics-listen"]
    drafter = ForkedRole("drafter", [*common, metrics["drafter"], "--dtype", "float32"], folder)
    _started(drafter)
    services = ["--verifiers", replica.processes["verifier"].address, "--drafters", drafter.address]
    orchestrator = ForkedRole("orchestrator", [*common, metrics["orchestrator"], *services], folder)
    _started(orchestrator)
    client = Replica(orchestrator.address, metrics)
    yield client
    client.channel.close()
    orchestrator.stop()
    drafter.stop()


def _started(process: RoleProcess) -> None:
    process.start()
    process.wait_until_ready(time.monotonic() + 240)


def answer(
    client: Client, case: Case, way: Way, tenant: str = "", **more: Any
) -> pb.GenerateOnceResponse:
    request = pb.GenerateOnceRequest(parameters=way.parameters(case, tenant, **more))
    response: pb.GenerateOnceResponse = client.stub.GenerateOnce(request, timeout=CALL_TIMEOUT_S)
    return response


def answers(
    client: Client, cases: Sequence[Case], way: Way, tenant: str = "", *,
    concurrency: int = TOGETHER, **more: Any,
) -> list[pb.GenerateOnceResponse]:  # fmt: skip
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda case: answer(client, case, way, tenant, **more), cases))


def tokens(
    client: Client, cases: Sequence[Case], way: Way, tenant: str = "", **more: Any
) -> list[list[int]]:
    return [list(response.token_ids) for response in answers(client, cases, way, tenant, **more)]


def wait_for_phrases(replica: Replica, case: Case, way: Way, tenant: str, count: int = 1) -> None:
    """Returns once the replica has read at least `count` phrases of the tenant from the log.

    A request for one token makes it follow the tenant's namespace.
    """
    before = {role: replica.metric(role, RECEIVED) for role in way.phrase_readers}
    answer(replica, replace(case, max_tokens=1), way, tenant, max_draft_tokens=8)
    for role, received in before.items():
        until(lambda role=role, received=received: replica.has_received(role, received, count), 60)  # type: ignore[misc]


def poison(
    server: RedisServer, tenant: str, cases: Sequence[Case], outputs: list[list[int]]
) -> int:
    """Writes wrong phrases that match every context of the outputs; returns their number."""
    numbers = random.Random(7)
    name = namespace_name(model_fingerprint(bundled_model("verifier")), tenant)
    count = 0
    with redis.Redis.from_url(server.url) as client:
        for number, (case, output) in enumerate(zip(cases, outputs, strict=True)):
            text = (*case.prompt, *output)
            phrases = [
                Phrase(text[end - size : end], tuple(numbers.choices(range(4096), k=6)))
                for end in range(len(case.prompt), len(text))
                for size in (1, 2, 4)
            ]
            for record in encode_all(number, phrases):
                client.xadd(f"draftloop:phrases:{name}", {"r": record})
            count += len(phrases)
    return count


def assert_misled(responses: Sequence[pb.GenerateOnceResponse], *, weighs: bool) -> None:
    """Asserts that wrong phrases were proposed, and drafted too unless the strategy weighs sources.

    A strategy that weighs phrases against other sources soon learns that they are wrong.
    """
    figures = [
        source
        for response in responses
        for source in response.summary.speculation.sources
        if source.source == shared.TOKEN_SOURCE_PHRASE
    ]
    accepted = sum(source.accepted_tokens for source in figures)
    assert sum(source.proposed_tokens for source in figures) > accepted
    assert weighs or sum(source.draft_tokens for source in figures) > accepted


@pytest.fixture(scope="module")
def eight_cases() -> list[Case]:
    """Eight prompts at the three temperatures in turn, each with its own seed."""
    return [
        Case(prompt, 48, {**UNFILTERED[index % len(UNFILTERED)], "seed": 2000 + index})
        for index, prompt in enumerate(held_out_prompts(TOGETHER, longest=96))
    ]


@pytest.fixture(scope="module")
def plain_outputs(first: Client, eight_cases: list[Case]) -> list[list[int]]:
    """The output of plain decoding, one request at a time."""
    return first.tokens(eight_cases, "autoregressive")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_phrases_change_no_token(
    first: Replica,
    server: RedisServer,
    eight_cases: list[Case],
    plain_outputs: list[list[int]],
    way: Way,
) -> None:
    """Cold phrases, warm phrases, and phrases that are wrong in every context.

    With cold phrases it drafts where that pays, which is rare with a model this cheap; with warm
    phrases in every round. Both run one case per temperature, one at a time. The poisoned run has
    all eight cases in shared forward passes.
    """
    cases, expected = eight_cases[: len(UNFILTERED)], plain_outputs[: len(UNFILTERED)]
    poisoned = f"poisoned {way.name}"
    count = poison(server, poisoned, eight_cases, plain_outputs)
    for tenant, size in ((way.name, None), (way.name, 8)):
        outputs = tokens(first, cases, way, tenant, max_draft_tokens=size, concurrency=1)
        assert not first_difference(expected, outputs), tenant
    wait_for_phrases(first, eight_cases[0], way, poisoned, count)
    responses = answers(first, eight_cases, way, poisoned, max_draft_tokens=8)
    outputs = [list(response.token_ids) for response in responses]
    assert not first_difference(plain_outputs, outputs), "poisoned"
    if way.from_phrases:
        assert_misled(responses, weighs=way.weighs)


@pytest.mark.timeout(600)
def test_phrases_change_no_token_with_filters_and_bias(
    first: Replica, server: RedisServer, cases: list[Case], expected: list[list[int]]
) -> None:
    """All sampling settings, with the strategy that drafts from every source."""
    way, count = Way("", "fused"), len(SAMPLINGS)
    poisoned = "poisoned and cut"
    phrase_count = poison(server, poisoned, cases[:count], expected[:count])
    wait_for_phrases(first, cases[0], way, poisoned, phrase_count)
    for tenant in ("cut", "cut", poisoned):
        responses = answers(first, cases[:count], way, tenant, max_draft_tokens=8)
        outputs = [list(response.token_ids) for response in responses]
        assert not first_difference(expected[:count], outputs), tenant
    assert_misled(responses, weighs=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [WAYS[2], WAYS[5], WAYS[6]], ids=lambda way: way.name)
def test_nothing_follows_a_stop_token_and_short_prompts_stay_whole(first: Client, way: Way) -> None:
    """Drafts neither go beyond a stop token nor change prompts of 1 to 3 tokens.

    The reference implementation goes on after an end token that was drafted, and truncates prompts
    that short.
    """
    prompt = held_out_prompts(1, longest=40)[0]
    for length in (1, 2, 3, 40):
        case = Case(prompt[-length:], 48)
        plain = list(answer(first, case, Way("", "autoregressive"), "stops").token_ids)
        assert len(plain) == 48 and list(answer(first, case, way, "stops").token_ids) == plain
        for stop in dict.fromkeys(plain[::9]):
            stopped = answer(first, case, way, "stops", stop_token_ids=[stop])
            assert list(stopped.token_ids) == plain[: plain.index(stop) + 1]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ways", [WAYS[::2], WAYS[1::2]], ids=["some", "others"])
def test_redis_outage_changes_no_token(
    first: Replica,
    server: RedisServer,
    cases: list[Case],
    expected: list[list[int]],
    ways: tuple[Way, ...],
) -> None:
    """Redis is killed while requests run and returns while others do; no client gets an error."""
    history = WAYS[5]
    failed = {role: first.metric(role, FAILURES) for role in history.phrase_readers}
    turns = [number % len(cases) for number in range(len(ways))]
    requests = [
        way.parameters(cases[turn], "lost", max_draft_tokens=8)
        for way, turn in zip(ways, turns, strict=True)
    ]
    with Streams(first, requests) as streams:
        streams.wait_until_under_way()
        server.kill()
        assert streams.unfinished_count
        streamed_outputs = streams.wait_for_tokens()
    until(lambda: all(first.metric(role, FAILURES) > before for role, before in failed.items()))
    without = tokens(first, cases[:3], history, "lost")
    server.start()
    outputs = tokens(first, cases[:3], history, "lost")
    assert not first_difference([expected[turn] for turn in turns], streamed_outputs)
    assert not first_difference(expected[:3], without)
    assert not first_difference(expected[:3], outputs)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_stream_does_not_wait_for_redis(first: Client, server: RedisServer, fault: str) -> None:
    """A request during the loss, and one after it, pause no longer than an undisturbed one.

    A busy machine causes pauses of its own; a fault of ours would cause one every time. So one of
    several tries must be without.
    """
    lose_redis, restore_redis = {
        "killed": (server.kill, server.start),
        "frozen": (server.freeze, server.thaw),
    }[fault]
    case = Case(held_out_prompts(1, longest=96)[0], 96)
    streamed(first, case, lambda: None)
    for _ in range(TRIES):
        undisturbed = streamed(first, case, lambda: None)
        try:
            disturbed = [streamed(first, case, lose_redis), streamed(first, case, lambda: None)]
        finally:
            restore_redis()
        assert all(stream.token_ids == undisturbed.token_ids for stream in disturbed)
        if max(stream.longest_gap for stream in disturbed) < undisturbed.longest_gap + STALL_S:
            return
    pytest.fail("it stood still every time")


@dataclass(frozen=True)
class Stream:
    """The tokens of a request, and when they arrived."""

    token_ids: list[int]
    came: list[float]  # when the request was made, then when each piece arrived

    @property
    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in itertools.pairwise(self.came))


def streamed(client: Client, case: Case, action: Callable[[], None]) -> Stream:
    """Streams a request and calls `action` in another thread after a few pieces."""
    parameters = case.parameters("ouroboros", max_draft_tokens=6, tenant="gaps", ignore_eos=True)
    thread = threading.Thread(target=action)
    token_ids: list[int] = []
    arrivals = [time.perf_counter()]
    for piece in client.stub.Generate(
        pb.GenerateRequest(parameters=parameters), timeout=CALL_TIMEOUT_S
    ):
        arrivals.append(time.perf_counter())
        token_ids += piece.token_ids
        if len(arrivals) == ACTS_AT:
            thread.start()
    thread.join()
    assert len(arrivals) > 2 * ACTS_AT, "it was over before anything happened"
    return Stream(token_ids, arrivals)


def test_phrase_only_rounds_can_be_disabled(first: Client) -> None:
    """Rounds drafted from phrases alone can be disabled, so that each part can be measured."""
    prompts = held_out_prompts(4, longest=120)

    def rounds(**on: bool) -> int:
        way = Way("", "ouroboros", {"max_draft_tokens": 12, **ouroboros_with(**on)})
        answers = [answer(first, Case(prompt, 64), way, "alone") for prompt in prompts]
        return sum(response.summary.speculation.phrase_rounds for response in answers)

    assert rounds() == rounds(draft_by_phrases=True, lengthen=True, harvest=True) == 0
    assert rounds(phrases_alone=True) > 0


@pytest.mark.timeout(600)
def test_replica_learns_from_requests_of_another_replica(first: Replica, second: Replica) -> None:
    """After ten similar requests at one replica, the eleventh at the other takes fewer rounds."""
    prompt = held_out_prompts(1, longest=120)[0]
    similar = [Case(prompt[start:], 64, {}) for start in range(SIMILAR + 1)]
    eleventh = similar[SIMILAR]
    separate = Way("", "ouroboros", {"max_draft_tokens": 12, **ouroboros_with(
        draft_by_phrases=True, lengthen=True, harvest=True, phrases_alone=True)})  # fmt: skip
    combined = Way("", "ouroboros", {"max_draft_tokens": 12}, **BOTH)
    cold = answer(second, eleventh, separate, "replicas")
    for case in similar[:SIMILAR]:
        answer(first, case, combined, "replicas")
    until(lambda: not first.metric("orchestrator", WAITING), 60)
    wait_for_phrases(second, eleventh, combined, "replicas")
    warm = answer(second, eleventh, combined, "replicas")
    assert list(warm.token_ids) == list(cold.token_ids)
    assert (
        warm.summary.speculation.tokens_per_round > 1.1 * cold.summary.speculation.tokens_per_round
    )


def test_flushall_under_load_causes_no_client_error(
    first: Client, server: RedisServer, cases: list[Case], expected: list[list[int]]
) -> None:
    stopped = threading.Event()

    def flush() -> None:
        with server.client() as client:
            while not stopped.wait(0.1):
                client.flushall()

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        assert not first_difference(expected[:6], tokens(first, cases[:6], WAYS[5], "flushed"))
    finally:
        stopped.set()
        flushing.join()
