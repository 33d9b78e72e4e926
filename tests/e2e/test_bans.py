"""Bans hold for all drafts: bad words, allowed tokens, `min_tokens`, by gRPC and both clients."""

from __future__ import annotations

from typing import Any

import grpc
import openai
import pytest
from openai import OpenAI

from draftloop.client import Client as OurClient
from draftloop.client import InvalidInput
from draftloop.config import bundled_model
from orchestrator.launcher import Stack
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from tests.e2e.client import STRATEGIES, Case, Client, bad_field, first_difference
from tests.e2e.http_client import complete

DRAFT_TOKENS = 12


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


@pytest.mark.timeout(600)
def test_no_strategy_emits_banned_tokens(
    client: Client, cases: list[Case], tokenizer: Tokenizer
) -> None:
    """Every strategy obeys bans on the very phrases that would come, and on an early end.

    The draft model follows the same bans. Otherwise each such place would cost it an acceptance.
    """
    plain = client.tokens(cases[:4], "autoregressive")
    words = [word for tokens in plain if (word := tokenizer.decode(tokens[2:4])).strip()]
    assert words
    ends = [tokens[7] for tokens in plain]
    banned: dict[str, Any] = {
        "bad_words": words, "min_tokens": 20, "stop_token_ids": ends, "stop": ["\n"],
    }  # fmt: skip
    expected = client.answers(cases[:4], "autoregressive", **banned)
    for answer in expected:
        assert not any(word in answer.text for word in words) and len(answer.token_ids) >= 20
        assert not set(ends) & set(answer.token_ids[:20])
    tokens = [list(answer.token_ids) for answer in expected]
    assert first_difference(plain, tokens)
    for strategy in STRATEGIES[1:]:
        answers = client.answers(
            cases[:4], strategy, concurrency=4, max_draft_tokens=DRAFT_TOKENS, **banned
        )
        assert not first_difference(tokens, [list(answer.token_ids) for answer in answers])
        assert [answer.text for answer in answers] == [answer.text for answer in expected]


def test_only_allowed_tokens_are_emitted(api: OpenAI, tokenizer: Tokenizer) -> None:
    """Classification by single tokens, as vLLM's clients do it."""
    allowed = [tokenizer.encode(word)[0] for word in ("yes", "no")]
    answer = complete(
        api, max_tokens=5, extra_body={"allowed_token_ids": allowed, "return_token_ids": True}
    )
    token_ids = answer.model_dump()["choices"][0]["token_ids"]
    assert len(token_ids) == 5 and set(token_ids) <= set(allowed)


def test_stop_text_is_ignored_before_min_tokens(api: OpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "stop": ["e", "\n", " "]}
    assert complete(api, **fields).usage.completion_tokens < 8
    answer = complete(api, **fields, extra_body={"min_tokens": 8})
    assert answer.usage.completion_tokens > 8
    assert answer.choices[0].text.startswith(complete(api, max_tokens=8).choices[0].text)
    without_ends = complete(api, **fields, extra_body={"min_tokens": 8, "ignore_eos": True})
    assert without_ends.usage.completion_tokens > 8  # the minimum used to be forgotten


def test_bans_through_the_python_client(stack: Stack) -> None:
    with OurClient(stack.address) as python_client:
        plain = python_client.generate("def add(a, b):\n    return", max_tokens=6)
        banned = python_client.generate(
            "def add(a, b):\n    return", max_tokens=6, bad_words=[plain.text.strip()[:1]]
        )
        assert banned.token_ids[0] != plain.token_ids[0]
        restricted = python_client.generate(
            "x = ", max_tokens=4, allowed_token_ids=[plain.token_ids[0]]
        )
        assert set(restricted.token_ids) == {plain.token_ids[0]}
        with pytest.raises(InvalidInput, match="min_tokens"):
            python_client.generate("x = ", max_tokens=4, min_tokens=5)


@pytest.mark.parametrize(
    ("bans", "field"),
    [
        ({"min_tokens": 99}, "min_tokens"),
        ({"allowed_token_ids": [4096]}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["word "] * 257}, "bad_words"),
        ({"bad_words": ["x+y-" * 65]}, "bad_words"),
        ({"allowed_token_ids": [5], "min_tokens": 1, "stop_token_ids": [5]}, "allowed_token_ids"),
    ],
)
def test_invalid_bans_are_refused_with_the_clients_field(
    client: Client, api: OpenAI, cases: list[Case], bans: dict[str, Any], field: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=field):
        complete(api, max_tokens=8, extra_body=bans)
    with pytest.raises(grpc.RpcError) as refused:
        client.stub.GenerateOnce(_request(cases[0], bans))
    assert bad_field(refused.value).startswith(field)


def test_min_tokens_with_a_grammar_is_refused(api: OpenAI) -> None:
    form = {"structured_outputs": {"regex": "a+"}, "min_tokens": 3}
    with pytest.raises(openai.BadRequestError, match="min_tokens: must not be given with"):
        complete(api, max_tokens=8, extra_body=form)


def _request(case: Case, bans: dict[str, Any]) -> Any:
    case = Case(case.prompt, 8)
    return pb.GenerateOnceRequest(parameters=case.parameters("fused", **bans))
