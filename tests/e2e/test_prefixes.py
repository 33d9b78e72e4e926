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
def prompt_numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def unique_prompt(prompt_numbers: Iterator[int]) -> list[int]:
    """A random prompt that no other test uses."""
    draw = random.Random(next(prompt_numbers))
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
    response: pb.GenerateOnceResponse = client.stub.GenerateOnce(
        pb.GenerateOnceRequest(parameters=parameters), timeout=60
    )
    return response


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_next_turn_of_a_chat_reuses_its_prefix(
    client: Client, unique_prompt: list[int], strategy: str
) -> None:
    """A chat's next turn reads its prefix, and its tokens are those without a shared prefix."""
    first = answer(client, unique_prompt, strategy)
    assert first.summary.cached_prompt_tokens == 0
    longer = [*unique_prompt, *first.token_ids, 17, 18, 19]
    second = answer(client, longer, strategy)
    # All but what the last round had not computed yet.
    assert len(longer) - second.summary.cached_prompt_tokens <= 3 + OUTPUT
    assert second.summary.cached_prompt_tokens >= PROMPT
    assert list(second.token_ids) == list(answer(client, longer, "autoregressive", "OFF").token_ids)


@pytest.mark.parametrize("salt", ["", "s"])
@pytest.mark.parametrize("scope", ["READ_ONLY", "PRIVATE", "OFF"])
def test_phrase_scope_decides_whether_a_prefix_is_kept(
    client: Client, unique_prompt: list[int], scope: str, salt: str
) -> None:
    answer(client, unique_prompt, phrases=scope, cache_salt=salt)
    assert answer(client, unique_prompt, cache_salt=salt).summary.cached_prompt_tokens == 0
    second = answer(client, unique_prompt, phrases=scope, cache_salt=salt)
    read = second.summary.cached_prompt_tokens
    assert (read > 0) == (scope == "READ_ONLY")


@pytest.mark.parametrize(
    "changes", [{"tenant": "b"}, {"cache_salt": "s"}, {"phrases": "PRIVATE"}, {"phrases": "OFF"}]
)
def test_prefix_is_not_shared_with_other_tenants_salts_or_scopes(
    client: Client, unique_prompt: list[int], changes: dict[str, Any]
) -> None:
    answer(client, unique_prompt)
    second = answer(client, unique_prompt, **changes)
    assert second.summary.cached_prompt_tokens == 0
    assert answer(client, unique_prompt).summary.cached_prompt_tokens > 0


def test_prefix_is_shared_under_the_same_salt(client: Client, unique_prompt: list[int]) -> None:
    answer(client, unique_prompt, cache_salt="s")
    assert answer(client, unique_prompt).summary.cached_prompt_tokens == 0
    assert answer(client, unique_prompt, cache_salt="s").summary.cached_prompt_tokens > 0


def test_concurrent_requests_share_a_prefix(client: Client, unique_prompt: list[int]) -> None:
    prompts = [[*unique_prompt, 100 + number, 7] for number in range(8)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        concurrent = list(pool.map(lambda prompt: answer(client, prompt), prompts))
        sequential = list(
            pool.map(lambda prompt: answer(client, prompt, "autoregressive", "OFF"), prompts)
        )
    assert [list(response.token_ids) for response in concurrent] == [
        list(response.token_ids) for response in sequential
    ]
    assert sum(response.summary.cached_prompt_tokens for response in concurrent) > 0
    assert not any(response.summary.cached_prompt_tokens for response in sequential)


def test_usage_reports_cached_tokens(api: OpenAI, unique_prompt: list[int]) -> None:
    for cached in (0, PROMPT - 1):
        completion = api.completions.create(model=MODEL, prompt=unique_prompt, max_tokens=2, n=2)
        assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
        assert (completion.usage.prompt_tokens_details.cached_tokens or 0) >= cached
