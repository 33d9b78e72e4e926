"""Phrases over a real Redis: they change the speed of replicas and never a token."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from draftloop.config import bundled_model
from draftloop.model_info import model_fingerprint
from draftloop.phrase import Phrase
from orchestrator.launcher import Stack
from orchestrator.role_process import RoleProcess
from orchestrator.stack_config import StackConfig
from phrase_store.records import encode_all
from phrase_store.store import namespace_name
from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import Case, Client, first_difference, held_out_prompts
from tests.e2e.conftest import SAMPLINGS, UNFILTERED
from tests.support.forked import ForkedRole, ForkedStack
from tests.support.redis_server import RedisServer

CALL_TIMEOUT_S = 120.0
TOGETHER = 8
SIMILAR = 10
# Where Redis is gone, so much longer than without may a stream stand still.
STALL_S = 0.05
TRIES = 10
ACTS_AT = 8
SOURCES = ("draft_model", "phrases", "own_text", "recycling")
OUROBOROS_OFF = dict.fromkeys(
    ("draft_by_phrases", "lengthen", "harvest", "history", "phrases_alone"), False
)


@dataclass(frozen=True)
class Way:
    """A way to draft."""

    name: str
    strategy: str
    fields: dict[str, object] = field(default_factory=dict)

    def speculation(self) -> pb.SpeculationParameters:
        return pb.SpeculationParameters(strategy=self.strategy, **self.fields)  # type: ignore[arg-type]


def _part(**on: bool) -> dict[str, object]:
    return {"ouroboros": shared.OuroborosParameters(**{**OUROBOROS_OFF, **on})}  # type: ignore[arg-type]


def _window(window: int, ngram: int, candidates: int) -> shared.LookaheadParameters:
    return shared.LookaheadParameters(window=window, ngram=ngram, candidates=candidates)


def _source(name: str) -> dict[str, object]:
    sources = shared.FusedParameters(**{other: other == name for other in SOURCES})
    return {"fused": sources, "max_draft_tokens": 16}


WAYS = (
    Way("speculative", "speculative"),
    Way("prompt_lookup", "prompt_lookup"),
    Way("lookahead", "lookahead"),
    Way("lookahead of bigrams", "lookahead", {"lookahead": _window(4, 2, 3)}),
    Way("lookahead, wide", "lookahead", {"lookahead": _window(10, 4, 5)}),
    Way("ouroboros", "ouroboros"),
    Way("ouroboros, long drafts", "ouroboros", {"max_draft_tokens": 30}),
    Way("ouroboros, drafting only", "ouroboros", _part(draft_by_phrases=True)),
    Way("ouroboros, lengthening only", "ouroboros", _part(lengthen=True)),
    Way("ouroboros, harvest only", "ouroboros", _part(harvest=True, lengthen=True)),
    Way("ouroboros, history only", "ouroboros", _part(history=True, lengthen=True)),
    Way("ouroboros, private", "ouroboros", {"phrases": shared.PHRASE_SCOPE_PRIVATE}),
    Way("ouroboros, off", "ouroboros", {"phrases": shared.PHRASE_SCOPE_OFF}),
    Way("opt_tree", "opt_tree"),
    Way("opt_tree, wide", "opt_tree", {"opt_tree": shared.OptTreeParameters(nodes=40, delta=0.2)}),
    Way("cascade", "cascade"),
    Way("token_recycling", "token_recycling"),
    Way("token_recycling, large", "token_recycling", {"max_draft_tokens": 30}),
    Way("fused", "fused"),
    Way("fused, large", "fused", {"max_draft_tokens": 40}),
    Way("fused, off", "fused", {"phrases": shared.PHRASE_SCOPE_OFF}),
    *(Way(f"fused, {name} alone", "fused", _source(name)) for name in SOURCES),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="module")
def replica(server: RedisServer) -> Iterator[Stack]:
    """A verifier, and the first orchestrator with its drafter."""
    config = StackConfig(
        port=0, http_port=0, drafter_port=0, verifier_port=0, dtype="float32",
        start_timeout_s=240, phrases_url=server.url,
    )  # fmt: skip
    with ForkedStack(config) as running:
        yield running


@pytest.fixture(scope="module")
def first(replica: Stack) -> Iterator[Client]:
    client = Client(replica.address)
    yield client
    client.channel.close()


@pytest.fixture(scope="module")
def second(
    replica: Stack, server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """A second orchestrator with a drafter of its own, on the same Redis."""
    folder = tmp_path_factory.mktemp("second")
    common = ["--listen", "127.0.0.1:0", "--phrases-url", server.url]
    drafter = ForkedRole("drafter", [*common, "--dtype", "float32"], folder)
    _started(drafter)
    services = ["--verifiers", replica.processes["verifier"].address, "--drafters", drafter.address]
    orchestrator = ForkedRole("orchestrator", [*common, *services], folder)
    _started(orchestrator)
    client = Client(orchestrator.address)
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
    parameters = case.parameters(way.strategy, tenant=tenant, **more)
    parameters.speculation.MergeFrom(way.speculation())
    request = pb.GenerateOnceRequest(parameters=parameters)
    said: pb.GenerateOnceResponse = client.stub.GenerateOnce(request, timeout=CALL_TIMEOUT_S)
    return said


def tokens(
    client: Client, cases: Sequence[Case], way: Way, tenant: str = "", **more: Any
) -> list[list[int]]:
    with ThreadPoolExecutor(TOGETHER) as pool:
        answers = pool.map(lambda case: answer(client, case, way, tenant, **more), cases)
        return [list(said.token_ids) for said in answers]


def poison(server: RedisServer, tenant: str, cases: Sequence[Case], said: list[list[int]]) -> None:
    """Phrases that follow everything that will be said, and are all wrong."""
    numbers = random.Random(7)
    name = namespace_name(model_fingerprint(bundled_model("verifier")), tenant)
    with redis.Redis.from_url(server.url) as client:
        for number, (case, output) in enumerate(zip(cases, said, strict=True)):
            text = (*case.prompt, *output)
            phrases = [
                Phrase(text[end - size : end], tuple(numbers.choices(range(4096), k=6)))
                for end in range(len(case.prompt), len(text))
                for size in (1, 2, 4)
            ]
            for record in encode_all(number, phrases):
                client.xadd(f"draftloop:phrases:{name}", {"r": record})


@pytest.fixture(scope="module")
def eight() -> list[Case]:
    """Eight prompts at the three temperatures in turn, every one with a seed of its own."""
    return [
        Case(prompt, 48, {**UNFILTERED[index % len(UNFILTERED)], "seed": 2000 + index})
        for index, prompt in enumerate(held_out_prompts(TOGETHER, longest=96))
    ]


@pytest.fixture(scope="module")
def said_plainly(first: Client, eight: list[Case]) -> list[list[int]]:
    """What plain decoding says, one request at a time."""
    return first.tokens(eight, "autoregressive")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_no_phrase_changes_a_token(
    first: Client, server: RedisServer, eight: list[Case], said_plainly: list[list[int]], way: Way
) -> None:
    """Cold, warm, and poisoned with phrases that are wrong wherever they are asked for.

    Cold where drafts pay, which they hardly do on a model as cheap as this one, then always: one
    case of each temperature, and poisoned all eight in shared forwards.
    """
    one_each, said = eight[: len(UNFILTERED)], said_plainly[: len(UNFILTERED)]
    poison(server, f"poisoned {way.name}", eight, said_plainly)
    for tenant, size in ((way.name, None), (way.name, 8)):
        found = tokens(first, one_each, way, tenant, max_draft_tokens=size)
        assert not first_difference(said, found), tenant
    found = tokens(first, eight, way, f"poisoned {way.name}", max_draft_tokens=8)
    assert not first_difference(said_plainly, found), "poisoned"


@pytest.mark.timeout(600)
def test_nor_where_tokens_are_cut_off_and_biased(
    first: Client, server: RedisServer, cases: list[Case], expected: list[list[int]]
) -> None:
    """All the ways to choose tokens, by the strategy that drafts from every source."""
    way, count = Way("", "fused"), len(SAMPLINGS)
    poison(server, "poisoned and cut", cases[:count], expected[:count])
    for tenant in ("cut", "cut", "poisoned and cut"):
        found = tokens(first, cases[:count], way, tenant, max_draft_tokens=8)
        assert not first_difference(expected[:count], found), tenant


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [WAYS[2], WAYS[5], WAYS[6]], ids=lambda way: way.name)
def test_nothing_comes_after_a_stop_token_and_short_prompts_are_whole(
    first: Client, way: Way
) -> None:
    """The reference goes on behind an end that was drafted, and cuts prompts of 1 to 3 tokens."""
    prompt = held_out_prompts(1, longest=40)[0]
    for length in (1, 2, 3, 40):
        case = Case(prompt[-length:], 48)
        plain = list(answer(first, case, Way("", "autoregressive"), "stops").token_ids)
        assert len(plain) == 48 and list(answer(first, case, way, "stops").token_ids) == plain
        for stop in dict.fromkeys(plain[::9]):
            stopped = answer(first, case, way, "stops", stop_token_ids=[stop])
            assert list(stopped.token_ids) == plain[: plain.index(stop) + 1]


@pytest.mark.timeout(600)
def test_redis_lost_midway_changes_no_token(
    first: Client, server: RedisServer, cases: list[Case], expected: list[list[int]]
) -> None:
    """Killed while requests run, back while others run; nobody is told of an error."""
    way, answers = WAYS[5], []
    running = threading.Thread(target=lambda: answers.extend(tokens(first, cases, way, "lost")))
    running.start()
    running.join(0.5)
    server.kill()
    running.join()
    without = tokens(first, cases[:3], way, "lost")
    server.start()
    again = tokens(first, cases[:3], way, "lost")
    assert not first_difference(expected, answers)
    assert not first_difference(expected[:3], without)
    assert not first_difference(expected[:3], again)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_stream_does_not_wait_for_redis(first: Client, server: RedisServer, fault: str) -> None:
    """No gap that the same request undisturbed has not, of one it is lost to and one without it.

    A busy machine makes gaps of its own, a fault of ours makes one every time: in one of some tries
    there must be none.
    """
    lose, find = {
        "killed": (server.kill, server.start),
        "frozen": (server.freeze, server.thaw),
    }[fault]
    case = Case(held_out_prompts(1, longest=96)[0], 96)
    streamed(first, case, lambda: None)
    for _ in range(TRIES):
        undisturbed = streamed(first, case, lambda: None)
        try:
            disturbed = [streamed(first, case, lose), streamed(first, case, lambda: None)]
        finally:
            find()
        assert all(stream.token_ids == undisturbed.token_ids for stream in disturbed)
        if max(stream.longest_gap for stream in disturbed) < undisturbed.longest_gap + STALL_S:
            return
    pytest.fail("it stood still every time")


@dataclass(frozen=True)
class Stream:
    """What came of a request, and when."""

    token_ids: list[int]
    came: list[float]  # when the request was made, and every piece

    @property
    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in itertools.pairwise(self.came))


def streamed(client: Client, case: Case, act: Callable[[], None]) -> Stream:
    """Acts after a few pieces, beside whoever reads the others."""
    parameters = case.parameters("ouroboros", max_draft_tokens=6, tenant="gaps", ignore_eos=True)
    acting = threading.Thread(target=act)
    token_ids: list[int] = []
    came = [time.perf_counter()]
    for piece in client.stub.Generate(
        pb.GenerateRequest(parameters=parameters), timeout=CALL_TIMEOUT_S
    ):
        came.append(time.perf_counter())
        token_ids += piece.token_ids
        if len(came) == ACTS_AT:
            acting.start()
    acting.join()
    assert len(came) > 2 * ACTS_AT, "it was over before anything happened"
    return Stream(token_ids, came)


def test_rounds_of_phrases_alone_have_a_switch(first: Client) -> None:
    """Or the paper's parts could not be measured one by one."""
    prompts = held_out_prompts(4, longest=120)

    def rounds(**on: bool) -> int:
        way = Way("", "ouroboros", {"max_draft_tokens": 12, **_part(**on)})
        answers = [answer(first, Case(prompt, 64), way, "alone") for prompt in prompts]
        return sum(said.summary.speculation.phrase_rounds for said in answers)

    assert rounds() == rounds(draft_by_phrases=True, lengthen=True, harvest=True) == 0
    assert rounds(phrases_alone=True) > 0


@pytest.mark.timeout(600)
def test_a_replica_learns_from_what_another_one_served(
    first: Client, second: Client, server: RedisServer
) -> None:
    """Ten similar requests at one replica; the eleventh at the other takes fewer rounds."""
    prompt = held_out_prompts(1, longest=120)[0]
    similar = [Case(prompt[start:], 64, {}) for start in range(SIMILAR + 1)]
    eleventh = similar[SIMILAR]
    apart = Way("", "ouroboros", {"max_draft_tokens": 12, **_part(
        draft_by_phrases=True, lengthen=True, harvest=True, phrases_alone=True)})  # fmt: skip
    together = Way("", "ouroboros", {"max_draft_tokens": 12})
    cold = answer(second, eleventh, apart, "replicas")
    for case in similar[:SIMILAR]:
        answer(first, case, together, "replicas")
    warm = _once_heard(second, eleventh, together)
    assert list(warm.token_ids) == list(cold.token_ids)
    assert (
        warm.summary.speculation.tokens_per_round > 1.1 * cold.summary.speculation.tokens_per_round
    )


def _once_heard(client: Client, case: Case, way: Way) -> pb.GenerateOnceResponse:
    """Asked when the replica has followed the log: a request that generates one token opens it."""
    opening = Case(case.prompt, 1, case.sampling)
    answer(client, opening, way, "replicas")
    time.sleep(2.0)
    return answer(client, case, way, "replicas")


def test_flushall_under_load_reaches_no_client(
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
