"""Log-probabilities of the prompt's tokens, as model evaluations request them."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

from draftloop.client import AsyncClient
from draftloop.client import Client as OurClient
from draftloop.config import bundled_model
from orchestrator.launcher import Stack
from orchestrator.tokenizer import Tokenizer
from tests.e2e.client import Case, Client
from tests.e2e.http_client import PROMPT, complete, complete_chat

CLOSE = 1e-3  # nats, in float32
TEXT = "def add(first, second):\n    return first + second\n\n\ndef sub(first, second):\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


@pytest.fixture(scope="module")
def long_prompt(cases: list[Case]) -> list[int]:
    """A prompt that is prefilled in several pieces."""
    prompt = [token for case in cases for token in case.prompt][:1500]
    assert len(prompt) > 1000
    return prompt


def transformers_logprobs(token_ids: list[int]) -> torch.Tensor:
    """float32 [tokens - 1, vocabulary]: log-probabilities at every position after the first."""
    model = AutoModelForCausalLM.from_pretrained(bundled_model("verifier"), dtype=torch.float32)
    with torch.inference_mode():
        logits = model.eval()(torch.tensor([token_ids])).logits[0, :-1]
    return torch.as_tensor(logits.log_softmax(-1))


@pytest.mark.timeout(300)
def test_prompt_logprobs_equal_transformers(stack: Stack, long_prompt: list[int]) -> None:
    """Scoring a prompt of several pieces ignores the cached prefix; later requests share it."""
    expected = transformers_logprobs(long_prompt)
    with OurClient(stack.address) as client:
        plain = client.generate(long_prompt, max_tokens=4)
        scored = client.generate(long_prompt, max_tokens=4, prompt_logprobs=3)
        unscored = client.generate(long_prompt, max_tokens=4)
    assert plain.prompt_logprobs is None and plain.token_ids == scored.token_ids
    assert scored.usage.cached_tokens == 0 and unscored.usage.cached_tokens > 1000
    logprobs = scored.prompt_logprobs
    assert logprobs is not None and logprobs.fits(len(long_prompt)) and logprobs.count == 3
    for row, entry, rank in zip(
        expected, logprobs.entries(long_prompt), logprobs.ranks, strict=True
    ):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=CLOSE)
        likelier = int((row > row[entry.token_id] + CLOSE).sum())
        assert likelier < rank <= 1 + int((row > row[entry.token_id] - CLOSE).sum())
        assert [value for _, value in entry.top] == pytest.approx(
            row.topk(3).values.tolist(), abs=CLOSE
        )


async def test_stream_has_prompt_logprobs_in_its_first_piece(stack: Stack) -> None:
    async with AsyncClient(stack.address) as client:
        pieces = [piece async for piece in client.stream("x = 1\n", prompt_logprobs=0)]
    first = pieces[0].prompt_logprobs
    assert first is not None and first.count == 0 and len(first.logprobs) == len(first.ranks) > 1
    assert all(piece.prompt_logprobs is None for piece in pieces[1:])


def test_loglikelihoods_as_requested_by_lm_eval(api: OpenAI, tokenizer: Tokenizer) -> None:
    """Token prompts with `echo` and one more token; every token's text offset is right."""
    prompts = [tokenizer.encode(TEXT), tokenizer.encode(TEXT[:20])]
    fields: dict[str, Any] = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1}
    answer = complete(api, temperature=0.0, **fields)
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        logprobs, rows = choice.logprobs, transformers_logprobs(prompt)
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(prompt) + 1
        assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
        expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
        assert logprobs.token_logprobs[1:-1] == pytest.approx(expected, abs=CLOSE)
        for name, logprob, top in zip(
            logprobs.tokens[1:], logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True
        ):
            assert top[name] == logprob and max(top.values()) >= logprob and len(top) <= 2
        for name, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
            assert name.startswith("bytes:") or choice.text[offset:].startswith(name)


def test_echo_is_streamed_first(api: OpenAI) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 6, "temperature": 0.0}
    whole = complete(api, **fields).choices[0]
    chunks = [chunk.choices[0] for chunk in complete(api, stream=True, **fields) if chunk.choices]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        assert sum(parts, []) == getattr(whole.logprobs, name)


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_is_scored_with_zero_max_tokens(api: OpenAI, stream: bool) -> None:
    """`max_tokens: 0`, as evaluations written for OpenAI's first API request it."""
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "extra_body": {"return_token_ids": True}}
    one_token = complete(api, max_tokens=1, **fields).choices[0]
    if stream:
        usage = {"stream_options": {"include_usage": True}}
        *answers, last = complete(api, max_tokens=0, stream=True, **usage, **fields)
        assert answers[-1].choices[0].finish_reason == "length"
    else:
        answers = [last := complete(api, max_tokens=0, **fields)]
    choices = [answer.choices[0] for answer in answers]
    assert "".join(choice.text for choice in choices) == PROMPT
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(choice.logprobs, name) for choice in choices if choice.logprobs]
        assert sum(parts, []) == getattr(one_token.logprobs, name)[:-1]
    assert not any(getattr(choice, "token_ids", ()) for choice in choices)  # none generated
    assert last.usage.completion_tokens == 0
    assert last.usage.prompt_tokens == last.usage.total_tokens > 0


def test_scored_prompt_has_no_stop_reason(api: OpenAI) -> None:
    """The token that would follow is not generated, so it cannot be the reason for the end."""
    fields = {"extra_body": {"return_token_ids": True}}
    (following,) = complete(api, max_tokens=1, **fields).choices[0].model_dump()["token_ids"]
    stops = {"extra_body": {"stop_token_ids": [following]}}
    choice = complete(api, max_tokens=0, echo=True, **stops).choices[0].model_dump()
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)


def test_prompt_logprobs_in_vllms_format(api: OpenAI) -> None:
    """vLLM's field: beside the text of a completion, beside the choices of a chat."""
    fields = {"extra_body": {"prompt_logprobs": 2}, "max_tokens": 2}
    (choice,) = complete(api, **fields).model_dump()["choices"]
    chat = complete_chat(api, **fields).model_dump()
    for logprobs in (choice["prompt_logprobs"], chat["prompt_logprobs"]):
        assert logprobs[0] is None and len(logprobs) > 2
        for entries in logprobs[1:]:
            ranks = sorted(entry["rank"] for entry in entries.values())
            assert ranks[:2] == [1, 2] and 2 <= len(entries) <= 3
            assert all(
                entry["logprob"] <= 0 and entry["decoded_token"] for entry in entries.values()
            )
            assert sum(math.exp(entry["logprob"]) for entry in entries.values()) < 1 + CLOSE
    assert "prompt_logprobs" not in complete(api, max_tokens=2).model_dump()["choices"][0]


def test_more_than_the_maximum_prompt_logprobs_is_refused(
    api: OpenAI, client: Client, cases: list[Case]
) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        complete(api, extra_body={"prompt_logprobs": 21})
    with pytest.raises(Exception, match="prompt_logprobs: must be from 0 to 20; got 21"):
        client.once(cases[0], "fused", prompt_logprobs=21)
