"""Common prefixes of prompts are computed once, by gRPC and HTTP, in all services."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from openai import OpenAI

from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import STRATEGIES, Client
from tests.e2e.http_client import MODEL

PROMPT, OUTPUT = 300, 12  # tokens


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def beginning(numbers: Iterator[int]) -> list[int]:
    """A random prompt that no other test uses."""
    draw = random.Random(next(numbers))
    return [draw.randrange(1, 4096) for _ in range(PROMPT)]


def answer(
    client: Client, prompt: list[int], strategy: str = "fused", phrases: str = "SHARED",
    tenant: str = "", cache_salt: str = "",
) -> pb.GenerateOnceResponse:  # fmt: skip
    scope = getattr(shared, f"PHRASE_SCOPE_{phrases}")
    parameters = pb.GenerationParameters(
        tokens=pb.TokenIds(ids=prompt),
        sampling=shared.SamplingParameters(temperature=0.8, seed=5),
        max_tokens=OUTPUT,
        ignore_eos=True,
        tenant=tenant,
        cache_salt=cache_salt,
        speculation=pb.SpeculationParameters(strategy=strategy, phrases=scope),
    )
    said: pb.GenerateOnceResponse = client.stub.GenerateOnce(
        pb.GenerateOnceRequest(parameters=parameters), timeout=60
    )
    return said


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_chats_next_turn(client: Client, beginning: list[int], strategy: str) -> None:
    """A chat's next turn reads its prefix, and its tokens are those without a shared prefix."""
    first = answer(client, beginning, strategy)
    assert first.summary.cached_prompt_tokens == 0
    longer = [*beginning, *first.token_ids, 17, 18, 19]
    second = answer(client, longer, strategy)
    # All but what the last round had not computed yet.
    assert len(longer) - second.summary.cached_prompt_tokens <= 3 + OUTPUT
    assert second.summary.cached_prompt_tokens >= PROMPT
    assert list(second.token_ids) == list(answer(client, longer, "autoregressive", "OFF").token_ids)


@pytest.mark.parametrize("salt", ["", "s"])
@pytest.mark.parametrize("scope", ["READ_ONLY", "PRIVATE", "OFF"])
def test_who_leaves_nothing_behind(
    client: Client, beginning: list[int], scope: str, salt: str
) -> None:
    answer(client, beginning, phrases=scope, cache_salt=salt)
    assert answer(client, beginning, cache_salt=salt).summary.cached_prompt_tokens == 0
    again = answer(client, beginning, phrases=scope, cache_salt=salt)
    read = again.summary.cached_prompt_tokens
    assert (read > 0) == (scope == "READ_ONLY")


@pytest.mark.parametrize(
    "other", [{"tenant": "b"}, {"cache_salt": "s"}, {"phrases": "PRIVATE"}, {"phrases": "OFF"}]
)
def test_others_do_not_learn_of_it(
    client: Client, beginning: list[int], other: dict[str, Any]
) -> None:
    answer(client, beginning)
    again = answer(client, beginning, **other)
    assert again.summary.cached_prompt_tokens == 0
    assert answer(client, beginning).summary.cached_prompt_tokens > 0


def test_those_who_say_the_same_salt_share(client: Client, beginning: list[int]) -> None:
    answer(client, beginning, cache_salt="s")
    assert answer(client, beginning).summary.cached_prompt_tokens == 0
    assert answer(client, beginning, cache_salt="s").summary.cached_prompt_tokens > 0


def test_a_burst_with_one_beginning(client: Client, beginning: list[int]) -> None:
    prompts = [[*beginning, 100 + number, 7] for number in range(8)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: answer(client, prompt), prompts))
        alone = list(
            pool.map(lambda prompt: answer(client, prompt, "autoregressive", "OFF"), prompts)
        )
    assert [list(one.token_ids) for one in together] == [list(one.token_ids) for one in alone]
    assert sum(one.summary.cached_prompt_tokens for one in together) > 0
    assert not any(one.summary.cached_prompt_tokens for one in alone)


def test_openais_usage_says_so(api: OpenAI, beginning: list[int]) -> None:
    for cached in (0, PROMPT - 1):
        said = api.completions.create(model=MODEL, prompt=beginning, max_tokens=2, n=2)
        assert said.usage is not None and said.usage.prompt_tokens_details is not None
        assert (said.usage.prompt_tokens_details.cached_tokens or 0) >= cached
