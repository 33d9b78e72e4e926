"""A steady load of requests by gRPC and HTTP; every answer is compared token for token."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc
import httpx

from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.e2e.client import Case, held_out_prompts
from tests.faults.fleet import Orchestrator

CONCURRENCY = 16
MAX_TOKENS = 32
CALL_S = 180.0
ATTEMPTS = 100
AGAIN_S = 0.1
STRATEGIES = ("fused", "speculative", "ouroboros", "autoregressive")
DRAFT_TOKENS = 6  # in every round over gRPC; over HTTP as many as pay
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_p": 0.9},
)
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]

Pieces = Iterator[list[int]]


class OrchestratorServer(Protocol):
    """Anything with an orchestrator's two addresses."""

    address: str
    http_address: str


Door = Callable[[OrchestratorServer, Case, str], Pieces]


class Broken(Exception):
    """The connection was lost without an error from the server."""


class Refused(Exception):
    """The server answered with an error."""


def stream_by_grpc(server: OrchestratorServer, case: Case, strategy: str) -> Pieces:
    """Yields token ids as they arrive. Raises Broken or Refused."""
    request = pb.GenerateRequest(
        parameters=case.parameters(strategy, DRAFT_TOKENS, ignore_eos=True)
    )
    with grpc.insecure_channel(server.address, options=OWN_CONNECTION) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        try:
            for piece in stub.Generate(request, timeout=CALL_S):
                yield list(piece.token_ids)
        except grpc.RpcError as error:
            keys = {key for key, _ in error.trailing_metadata() or ()}
            lost = error.code() is grpc.StatusCode.UNAVAILABLE
            is_broken = lost and "grpc-status-details-bin" not in keys
            raise (Broken if is_broken else Refused)(f"{error.code()}: {error.details()}") from None


def stream_by_http(server: OrchestratorServer, case: Case, strategy: str) -> Pieces:
    """Yields token ids as they arrive, from the rounds' traces. Raises Broken or Refused."""
    body = {
        "prompt": list(case.prompt), "max_tokens": case.max_tokens, "stream": True,
        "temperature": 0, "seed": 0, "ignore_eos": True, **case.sampling,
        "speculative": {"strategy": strategy, "trace": True},
    }  # fmt: skip
    url = f"http://{server.http_address}/v1/completions"
    try:
        with httpx.stream("POST", url, json=body, timeout=CALL_S) as answer:
            if answer.status_code != 200:
                raise Refused(f"{answer.status_code}: {answer.read().decode()}")
            yield from _events(answer)
    except httpx.TransportError as error:
        raise Broken(repr(error)) from None


def _events(answer: httpx.Response) -> Pieces:
    for line in answer.iter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        if line and not line.startswith(":"):
            event = json.loads(data)
            if "error" in event:
                raise Refused(str(event))
            for choice in event["choices"]:
                yield [token["token_id"] for token in choice.get("trace", {}).get("tokens", ())]
    raise Broken("the stream ended before its end")


DOORS: tuple[Door, ...] = (stream_by_grpc, stream_by_http)


def make_cases(count: int = CONCURRENCY, max_tokens: int = MAX_TOKENS) -> list[Case]:
    """Different prompts with three sampling settings in turn, each with its own seed."""
    prompts = held_out_prompts(count, longest=48)
    return [
        Case(prompt, max_tokens, {**SAMPLINGS[index % 3], "seed": index})
        for index, prompt in enumerate(prompts)
    ]


def decode_without_faults(server: OrchestratorServer, cases: Sequence[Case]) -> list[list[int]]:
    """The output of plain decoding without faults, one request at a time."""
    return [
        list(itertools.chain(*stream_by_grpc(server, case, "autoregressive"))) for case in cases
    ]


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    answered: int = 0
    retried: int = 0
    lost: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    def assert_none_lost(self) -> None:
        """Fails if a request was lost or an output differs."""
        assert self.answered
        assert not self.lost, self.lost[:5]
        assert not self.differing, self.differing[:5]


class Load:
    """Sixteen clients that send requests from `__enter__` to `__exit__`.

    A client whose orchestrator was killed sends the request to another one, from the start. A
    request that fails in any other way counts as lost. With `once` each client sends one request.
    """

    def __init__(
        self,
        orchestrators: Sequence[Orchestrator],
        cases: Sequence[Case],
        expected: Sequence[Sequence[int]],
        *,
        once: bool = False,
    ) -> None:
        self._orchestrators = orchestrators
        self._cases = cases
        self._expected = [list(tokens) for tokens in expected]
        self._over = threading.Event()
        if once:
            self._over.set()
        self._pool = ThreadPoolExecutor(len(cases))
        self._counting = threading.Lock()
        self.tally = Tally()
        self._begun = [threading.Event() for _ in cases]

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._client, i) for i in range(len(self._cases))]
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the clients; returns when the last answers have arrived."""
        self._over.set()
        for each in self._running:
            each.result()
        self._pool.shutdown()

    def wait_until_under_way(self) -> None:
        """Returns when every client has received tokens."""
        for event in self._begun:
            assert event.wait(CALL_S)

    def _client(self, index: int) -> None:
        for turn in itertools.count():
            strategy = STRATEGIES[(index + turn) % len(STRATEGIES)]
            self._ask(index, DOORS[(index + turn) % len(DOORS)], strategy, index + turn)
            if self._over.is_set():
                return

    def _ask(self, index: int, stream: Door, strategy: str, first: int) -> None:
        for attempt in range(ATTEMPTS):
            kills = {each: each.kills for each in self._orchestrators}  # before one is chosen
            orchestrator = self._ready_one(first + attempt)
            received: list[int] = []
            problem = self._listen(
                index, stream(orchestrator, self._cases[index], strategy), received
            )
            self._compare(index, strategy, received, whole=problem is None)
            if problem is None:
                return
            if orchestrator.kills == kills[orchestrator]:
                break
            self._count(retried=1)
            time.sleep(AGAIN_S)
        with self._counting:
            at = time.strftime("%H:%M:%S")
            self.tally.lost.append(f"{at} {stream.__name__} {strategy} case {index}: {problem}")

    def _ready_one(self, first: int) -> Orchestrator:
        """Chooses as a load balancer does: the next one in turn that is ready."""
        turn = first % len(self._orchestrators)
        rotated = [*self._orchestrators[turn:], *self._orchestrators[:turn]]
        return next((each for each in rotated if each.ready), rotated[0])

    def _listen(self, index: int, pieces: Pieces, received: list[int]) -> Broken | Refused | None:
        try:
            for piece in pieces:
                received += piece
                self._begun[index].set()
        except (Broken, Refused) as problem:
            return problem
        return None

    def _compare(self, index: int, strategy: str, received: list[int], *, whole: bool) -> None:
        """Compares an answer; a partial one must agree as far as it goes."""
        expected = self._expected[index]
        if received != (expected if whole else expected[: len(received)]):
            with self._counting:
                self.tally.differing.append(f"case {index}, {strategy}: {received} not {expected}")
        self._count(answered=int(whole))

    def _count(self, *, answered: int = 0, retried: int = 0) -> None:
        with self._counting:
            self.tally.answered += answered
            self.tally.retried += retried
