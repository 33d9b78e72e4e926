"""The Python client against all three roles: whole, streamed, sync, async, from many threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from draftloop.client import (
    NO_RETRY,
    AsyncClient,
    Client,
    DeadlineExceeded,
    GenerationParameters,
    InvalidInput,
    Overloaded,
    Retry,
    Speculation,
)
from orchestrator.launcher import Stack
from tests.e2e.conftest import InProcess
from tests.support.sessions import open_sessions, wait_until_free

PROMPT = "def area(width, height):\n"
SAID: dict[str, Any] = {
    "max_tokens": 24, "temperature": 0.7, "seed": 11, "logprobs": 2, "ignore_eos": True,
    "strategy": "speculative",
}  # fmt: skip


@pytest.fixture
def python_client(stack: Stack) -> Iterator[Client]:
    with Client(stack.address, timeout=120) as client:
        yield client


def test_whole_and_streamed_answers_agree(python_client: Client) -> None:
    whole = python_client.generate(PROMPT, **SAID)
    stream = python_client.stream(PROMPT, **SAID)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text
    token_ids, sources, logprobs = (
        tuple(value for piece in pieces for value in getattr(piece, name))
        for name in ("token_ids", "sources", "logprobs")
    )
    assert token_ids == whole.token_ids
    # Which round drafted a token depends on timing. The token and its log-probability do not.
    assert len(sources) == len(whole.sources) == len(token_ids) == 24
    assert [entry.logprob for entry in logprobs] == pytest.approx(
        [entry.logprob for entry in whole.logprobs], abs=1e-4
    )
    assert stream.summary.usage == whole.usage
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24
    assert (whole.seed, whole.finish_reason) == (11, "length")
    assert whole.figures.strategy == "speculative" and whole.tokens_per_second > 0
    assert sum(whole.figures.accepted_per_position) == whole.figures.accepted_tokens
    assert {entry.token_id for entry in whole.logprobs} == set(whole.token_ids)


def test_text_token_ids_and_options_give_the_same_answer(python_client: Client) -> None:
    prompt = python_client.tokenize(PROMPT)
    assert python_client.detokenize(prompt) == PROMPT
    options = {name: value for name, value in SAID.items() if name != "strategy"}
    by_text = python_client.generate(PROMPT, **options, strategy="prompt_lookup")
    by_tokens = python_client.generate(prompt, **options, strategy="autoregressive")
    assert by_text.token_ids == by_tokens.token_ids
    info = python_client.info()
    assert {"fused", "speculative"} <= set(info.strategies) and info.drafter is not None


async def test_async_client_gives_the_same_answer(stack: Stack, python_client: Client) -> None:
    expected = await asyncio.to_thread(python_client.generate, PROMPT, **SAID)
    async with AsyncClient(stack.address, timeout=120) as client:
        calls = [client.generate(PROMPT, **SAID) for _ in range(3)]
        assert {answer.token_ids for answer in await asyncio.gather(*calls)} == {expected.token_ids}
        texts = [piece.text async for piece in client.stream(PROMPT, **SAID)]
        assert "".join(texts) == expected.text
        assert await client.tokenize(PROMPT) == python_client.tokenize(PROMPT)
        async_info, sync_info = await client.info(), await asyncio.to_thread(python_client.info)
        assert async_info.verifier.instance_id == sync_info.verifier.instance_id
        assert async_info.strategies == sync_info.strategies


def test_many_threads_can_share_a_client(python_client: Client) -> None:
    def ask(seed: int) -> tuple[str, str]:
        options = {**SAID, "seed": seed}
        streamed = "".join(piece.text for piece in python_client.stream(PROMPT, **options))
        return python_client.generate(PROMPT, **options).text, streamed

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [1, 2, 1, 2]))
    assert all(whole == streamed for whole, streamed in answers)
    assert answers[:2] == answers[2:] and answers[0] != answers[1]


def test_cancel_and_timeout_free_the_session(stack: Stack, python_client: Client) -> None:
    endless: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True, "strategy": "autoregressive"}
    for piece in python_client.stream(PROMPT, **endless):
        assert piece.token_ids and open_sessions(stack)
        break
    wait_until_free(stack)
    with pytest.raises(DeadlineExceeded):
        python_client.generate(PROMPT, timeout=0.5, **endless)
    wait_until_free(stack)


async def test_request_to_an_overloaded_server_is_retried(orchestrator: InProcess) -> None:
    async with orchestrator(max_requests=1) as address, AsyncClient(address) as client:
        running = client.stream(PROMPT, max_tokens=1900, ignore_eos=True, strategy="autoregressive")
        await running.read()
        async with AsyncClient(address, retry=NO_RETRY) as single_attempt:
            with pytest.raises(Overloaded) as caught:
                await single_attempt.generate(PROMPT, max_tokens=4)
        assert caught.value.retry_after_s > 0
        retrying = AsyncClient(address, retry=Retry(attempts=30))
        waiting = asyncio.create_task(retrying.generate(PROMPT, max_tokens=4, ignore_eos=True))
        await asyncio.sleep(0.2)
        running.cancel()
        assert len((await waiting).token_ids) == 4
        await retrying.close()


def test_invalid_input_error_names_the_field(python_client: Client) -> None:
    with pytest.raises(InvalidInput, match="top_p: must be above 0 and at most 1; got") as caught:
        python_client.generate(PROMPT, top_p=1.5)
    assert caught.value.field == "top_p"
    with pytest.raises(InvalidInput, match="speculation.strategy"):
        list(python_client.stream(PROMPT, strategy="magic"))


def test_generate_accepts_a_generation_parameters_value(python_client: Client) -> None:
    """A request as a `GenerationParameters` value can set fields that have no keyword."""
    parameters = GenerationParameters(text=PROMPT, speculation=Speculation(strategy="lookahead"))
    answer = python_client.generate(parameters, max_tokens=4, ignore_eos=True)
    assert answer.figures.strategy == "lookahead" and len(answer.token_ids) == 4
