"""Requests over gRPC: bad fields, limits and ends of an output, cancellation, overload."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from orchestrator.launcher import Stack
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.e2e.client import CALL_TIMEOUT_S, STRATEGIES, Case, Client, RetryInfo, bad_field
from tests.e2e.conftest import InProcess
from tests.support.rich_errors import detail
from tests.support.sessions import wait_until_free

Change = Callable[[pb.GenerationParameters], None]
NAN = float("nan")


def set_sampling(name: str, value: Any) -> Change:
    return lambda parameters: setattr(parameters.sampling, name, value)


def set_field(name: str, value: Any) -> Change:
    return lambda parameters: setattr(parameters, name, value)


def set_prompt(ids: list[int]) -> Change:
    return lambda parameters: parameters.tokens.CopyFrom(pb.TokenIds(ids=ids))


def set_speculation(name: str, value: Any) -> Change:
    return lambda parameters: setattr(parameters.speculation, name, value)


BAD = [
    ("text", set_field("text", "")),
    ("prompt", lambda said: said.ClearField("prompt")),
    ("tokens.ids", set_prompt([])),
    ("tokens.ids[1]", set_prompt([5, 4096])),
    ("tokens.ids[0]", set_prompt([-1])),
    ("tokens.ids", set_prompt([5] * 2048)),
    ("max_tokens", set_field("max_tokens", 0)),
    ("speculation.strategy", set_speculation("strategy", "magic")),
    ("speculation.max_draft_tokens", set_speculation("max_draft_tokens", 0)),
    ("speculation.max_draft_tokens", set_speculation("max_draft_tokens", 100_000)),
    ("temperature", set_sampling("temperature", -1.0)),
    ("temperature", set_sampling("temperature", NAN)),
    ("top_p", set_sampling("top_p", 1.5)),
    ("top_p", set_sampling("top_p", 0.0)),
    ("top_p", set_sampling("top_p", NAN)),
    ("min_p", set_sampling("min_p", -0.1)),
    ("repetition_penalty", set_sampling("repetition_penalty", 0.0)),
    ("repetition_penalty", set_sampling("repetition_penalty", -1.0)),
    ("presence_penalty", set_sampling("presence_penalty", 3.0)),
    ("frequency_penalty", set_sampling("frequency_penalty", NAN)),
    ("logit_bias", lambda said: said.sampling.logit_bias.update({4096: 1.0})),
    ("stop", lambda said: said.stop.append("")),
    ("stop", lambda said: said.stop.extend(["x"] * 17)),
    ("stop_token_ids[0]", lambda said: said.stop_token_ids.append(4096)),
]


@pytest.mark.parametrize(("field", "change"), BAD, ids=[f"{i}-{b[0]}" for i, b in enumerate(BAD)])
def test_invalid_input_names_its_field(client: Client, field: str, change: Change) -> None:
    """INVALID_ARGUMENT with the field's name in the message and in BadRequest; never INTERNAL."""
    parameters = Case((5, 6, 7), 4).parameters("speculative")
    change(parameters)
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.GenerateOnce(pb.GenerateOnceRequest(parameters=parameters), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bad_field(caught.value) == field
    assert field in caught.value.details()
    with pytest.raises(grpc.RpcError) as streamed:
        list(client.stub.Generate(pb.GenerateRequest(parameters=parameters), timeout=30))
    assert streamed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_streamed_and_whole_answers_text_and_figures_agree(
    client: Client, cases: list[Case], strategy: str
) -> None:
    """Streamed pieces, whole answer, text and figures agree."""
    case = cases[7]
    whole = client.once(case, strategy, ignore_eos=True)
    parameters = case.parameters(strategy, ignore_eos=True)
    *pieces, last = client.stub.Generate(pb.GenerateRequest(parameters=parameters), timeout=60)
    token_ids = [token for piece in pieces for token in piece.token_ids]
    assert token_ids == list(whole.token_ids)
    assert len(token_ids) == case.max_tokens == whole.summary.output_tokens
    assert "".join(piece.text for piece in pieces) == whole.text
    assert client.stub.Detokenize(pb.DetokenizeRequest(token_ids=token_ids)).text == whole.text
    assert sum(len(piece.sources) for piece in pieces) == len(token_ids)
    assert last.summary.finish_reason == pb.FINISH_REASON_LENGTH
    figures = whole.summary.speculation
    assert figures.strategy == strategy
    assert sum(figures.accepted_tokens_per_position) == figures.accepted_tokens
    assert figures.tokens_per_round * figures.rounds + 1 == pytest.approx(len(token_ids))
    assert figures.accepted_tokens <= figures.draft_tokens
    if strategy == "autoregressive":
        assert figures.rounds == len(token_ids) - 1 and figures.draft_tokens == 0


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_tokens_is_exact(client: Client, cases: list[Case], limit: int) -> None:
    case = Case(cases[0].prompt, limit)
    for strategy in STRATEGIES:
        assert len(client.once(case, strategy, ignore_eos=True).token_ids) == limit


def test_stop_text_ends_all_strategies_at_the_same_token(client: Client, cases: list[Case]) -> None:
    """A stop text that spans several tokens is never sent, not even in part."""
    case = cases[7]
    text = client.once(case, "autoregressive", ignore_eos=True).text
    stop = text[len(text) // 2 : len(text) // 2 + 7]
    results = [client.once(case, s, ignore_eos=True, stop=[stop]) for s in STRATEGIES]
    assert {result.text for result in results} == {text[: text.index(stop)]}
    assert len({tuple(result.token_ids) for result in results}) == 1
    assert {r.summary.finish_reason for r in results} == {pb.FINISH_REASON_STOP}
    for result in results:
        figures = result.summary.speculation
        assert figures.tokens_per_round * figures.rounds + 1 == pytest.approx(
            result.summary.output_tokens
        )


def test_stop_token_is_the_last_token(client: Client, cases: list[Case]) -> None:
    plain = list(client.once(cases[7], "autoregressive", ignore_eos=True).token_ids)
    stop = plain[20]
    expected = plain[: plain.index(stop) + 1]
    for strategy in STRATEGIES:
        answer = client.once(cases[7], strategy, ignore_eos=True, stop_token_ids=[stop])
        assert list(answer.token_ids) == expected


def test_output_ends_at_the_context_length(client: Client) -> None:
    """The last rounds have no room for a draft, and the output fills the context."""
    case = Case(tuple(range(10, 2050)), 64)
    answers = [client.once(case, strategy, ignore_eos=True) for strategy in STRATEGIES]
    assert {len(answer.token_ids) for answer in answers} == {2048 - len(case.prompt)}
    assert len({tuple(answer.token_ids) for answer in answers}) == 1


def test_characters_of_several_tokens_round_trip(client: Client) -> None:
    """Tokenize and Detokenize round-trip characters of up to four bytes."""
    text = "naïve 中文 🙂 x = 1\n\tpass"
    token_ids = client.stub.Tokenize(pb.TokenizeRequest(text=text)).token_ids
    assert client.stub.Detokenize(pb.DetokenizeRequest(token_ids=token_ids)).text == text


def test_cancelled_request_frees_its_sessions(stack: Stack, client: Client) -> None:
    """After a cancel and after a deadline, the verifier's sessions are soon freed.

    The temperature is high so that no text loops; 2000 tokens take many times the deadline on any
    machine.
    """
    parameters = Case((5, 6, 7), 2000, {"temperature": 1.5}).parameters(
        "speculative", ignore_eos=True
    )
    call = client.stub.Generate(pb.GenerateRequest(parameters=parameters))
    next(call)
    call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Generate(pb.GenerateRequest(parameters=parameters), timeout=0.4))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until_free(stack)


async def test_excess_requests_are_refused_with_a_retry_hint(orchestrator: InProcess) -> None:
    parameters = Case((5, 6, 7), 2000).parameters("autoregressive", ignore_eos=True)
    async with (
        orchestrator(max_requests=1) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = generation_pb2_grpc.GenerationStub(channel)
        running = stub.Generate(pb.GenerateRequest(parameters=parameters))
        await running.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GenerateOnce(pb.GenerateOnceRequest(parameters=parameters))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail(caught.value, RetryInfo).retry_delay.ToMilliseconds() > 0
        running.cancel()


async def test_slow_reader_holds_a_place_only_during_generation(
    orchestrator: InProcess,
) -> None:
    """A client that does not read frees its place once everything has been generated.

    The output is larger than what the connection buffers, and nothing of it is lost.
    """
    long = Case((5, 6, 7), 1000).parameters("autoregressive", ignore_eos=True, logprobs=20)
    short = Case((5, 6, 7), 1).parameters("autoregressive")
    async with (
        orchestrator(max_requests=1) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = generation_pb2_grpc.GenerationStub(channel)
        running = stub.Generate(pb.GenerateRequest(parameters=long))
        await running.read()
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.GenerateOnce(pb.GenerateOnceRequest(parameters=short))
                    break
                await asyncio.sleep(0.05)
        tokens = 1
        while (piece := await running.read()) is not grpc.aio.EOF:
            tokens += len(piece.token_ids)
        assert tokens == 1000
