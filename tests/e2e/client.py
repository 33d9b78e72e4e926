"""Test cases and a gRPC client that runs them against an orchestrator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

from draftloop.config import REPOSITORY, bundled_model
from draftloop.speculation import DRAFTER_STRATEGIES, STRATEGIES
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from protos import speculation_pb2 as shared
from tests.support.rich_errors import detail

CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Case:
    """One prompt and how to continue it."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: dict[str, Any] = field(default_factory=dict)

    def parameters(
        self, strategy: str, max_draft_tokens: int | None = None, **more: Any
    ) -> pb.GenerationParameters:
        """The case as a request; every round drafts `max_draft_tokens`, even if it does not pay."""
        return pb.GenerationParameters(
            tokens=pb.TokenIds(ids=self.prompt),
            sampling=shared.SamplingParameters(**{"seed": 0, **self.sampling}),
            max_tokens=self.max_tokens,
            speculation=pb.SpeculationParameters(
                strategy=strategy, max_draft_tokens=max_draft_tokens
            ),
            **more,
        )


class Client:
    """A blocking client of one orchestrator."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = generation_pb2_grpc.GenerationStub(self.channel)

    def once(self, case: Case, strategy: str, **more: Any) -> pb.GenerateOnceResponse:
        request = pb.GenerateOnceRequest(parameters=case.parameters(strategy, **more))
        answer: pb.GenerateOnceResponse = self.stub.GenerateOnce(request, timeout=CALL_TIMEOUT_S)
        return answer

    def tokens(
        self, cases: Iterable[Case], strategy: str, concurrency: int = 1, **more: Any
    ) -> list[list[int]]:
        """The output tokens of every case, in the order of the cases."""
        answers = self.answers(cases, strategy, concurrency, **more)
        return [list(answer.token_ids) for answer in answers]

    def answers(
        self, cases: Iterable[Case], strategy: str, concurrency: int = 1, **more: Any
    ) -> list[pb.GenerateOnceResponse]:
        """The whole answer of every case, in the order of the cases."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda case: self.once(case, strategy, **more), cases))


def held_out_prompts(count: int, longest: int) -> list[tuple[int, ...]]:
    """The first `longest` tokens of `count` held-out prompts; one prompt per file comes first."""
    tokenizer = Tokenizer(bundled_model("verifier"))
    lines = (REPOSITORY / "models" / "held_out_prompts.jsonl").read_text("utf-8").splitlines()
    by_file = {entry["file"]: entry["prompt"] for entry in reversed([json.loads(x) for x in lines])}
    texts = list(by_file.values())[::-1] + [json.loads(line)["prompt"] for line in lines]
    chosen = list(dict.fromkeys(tuple(tokenizer.encode(text)[:longest]) for text in texts))
    return chosen[:count]


def bad_field(error: grpc.RpcError) -> str:
    """Name of the field that the error blames."""
    return str(detail(error, BadRequest).field_violations[0].field)


def first_difference(expected: Sequence[Sequence[int]], actual: Sequence[Sequence[int]]) -> str:
    """Describes the first difference; empty if all outputs are equal."""
    for case, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if list(left) != list(right):
            at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), -1)
            return f"case {case} differs at token {at}: {list(left)[at:]} != {list(right)[at:]}"
    return ""


__all__ = [
    "STRATEGIES", "BadRequest", "Case", "Client", "ErrorInfo", "RetryInfo", "bad_field",
    "first_difference", "held_out_prompts",
]  # fmt: skip


def assert_drafted_alike(
    client: Client,
    cases: Sequence[Case],
    expected: list[list[int]],
    strategy: str,
    concurrency: int,
    draft_tokens: int,
) -> None:
    """Asserts the expected tokens and that there were drafts, by a model if the strategy has one.

    With a drafter that does not answer, the tokens alone would be equal too.
    """
    answers = client.answers(cases, strategy, concurrency, max_draft_tokens=draft_tokens)
    outputs = [list(answer.token_ids) for answer in answers]
    assert not first_difference(expected, outputs), strategy
    figures = [answer.summary.speculation for answer in answers]
    assert sum(each.draft_tokens for each in figures) > 0, strategy
    if strategy in DRAFTER_STRATEGIES:
        assert sum(each.draft_forwards for each in figures) > 0, strategy
