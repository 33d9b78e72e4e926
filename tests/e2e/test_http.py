"""The HTTP API of a real stack, by OpenAI's clients and by plain HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from draftloop.config import bundled_model
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import CALL_TIMEOUT_S, Client
from tests.e2e.http_client import MODEL, PROMPT, complete, complete_chat


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


def grpc_client(client: Client, **fields: Any) -> pb.GenerateOnceResponse:
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 11}
    parameters = pb.GenerationParameters(
        text=PROMPT, max_tokens=24, sampling=shared.SamplingParameters(**sampling), **fields
    )
    request = pb.GenerateOnceRequest(parameters=parameters)
    answer: pb.GenerateOnceResponse = client.stub.GenerateOnce(request, timeout=CALL_TIMEOUT_S)
    return answer


def test_http_and_grpc_give_the_same_text(api: OpenAI, client: Client) -> None:
    """HTTP and gRPC give the same text, whole and streamed, whatever the strategy."""
    expected = grpc_client(client, stop=["zzz"])
    answer = complete(api, stop="zzz")
    streamed = complete(api, stream=True, extra_body={"speculative": {"strategy": "speculative"}})
    assert answer.choices[0].text == expected.text
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens == expected.summary.prompt_tokens
    assert answer.metrics["seed"] == 11


def test_many_prompts_with_many_choices(api: OpenAI, tokenizer: Tokenizer) -> None:
    """Choice i uses seed + i. A prompt as text and as token ids gives the same choices."""
    texts = [PROMPT, "import os\n"]
    both = complete(api, prompt=texts, n=2, max_tokens=6)
    ids = complete(api, prompt=[tokenizer.encode(text) for text in texts], n=2, max_tokens=6)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [c.text for c in ids.choices] == [c.text for c in both.choices]
    second = complete(api, seed=12, max_tokens=6)
    assert second.choices[0].text == both.choices[1].text
    assert both.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in texts)
    chunks = list(complete(api, prompt=texts, n=2, max_tokens=6, stream=True))
    streamed = ["", "", "", ""]
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in both.choices]


def test_equal_prompts_without_a_seed_get_different_answers(api: OpenAI) -> None:
    """Without a seed each prompt draws its own; a given seed holds for all prompts."""
    unseeded = complete(api, prompt=[PROMPT, PROMPT], seed=None, temperature=1.0)
    assert unseeded.choices[0].text != unseeded.choices[1].text
    first = complete(api, seed=unseeded.metrics["seed"], temperature=1.0)
    assert first.choices[0].text == unseeded.choices[0].text
    seeded = complete(api, prompt=[PROMPT, PROMPT], temperature=1.0)
    assert seeded.choices[0].text == seeded.choices[1].text


def test_echo(api: OpenAI) -> None:
    plain = complete(api).choices[0].text
    assert complete(api, echo=True).choices[0].text == PROMPT + plain
    chunks = complete(api, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + plain


def test_stop_text_never_leaks(api: OpenAI) -> None:
    """The stop text spans several tokens. No chunk contains any part of it."""
    whole = complete(api).choices[0].text
    middle = len(whole) // 2
    stop = whole[middle : middle + 5]
    answer = complete(api, stop=[stop, "never said"])
    chunks = list(complete(api, stop=[stop], stream=True))
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert answer.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


def test_logprobs_of_completions(api: OpenAI) -> None:
    answer = complete(api, logprobs=2).choices[0]
    logprobs = answer.logprobs
    assert "".join(logprobs.tokens) == answer.text
    for at, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert answer.text[at:].startswith(token)
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert logprob <= 0 and top[token] == logprob and 2 <= len(top) <= 3
    streamed = list(complete(api, logprobs=2, stream=True))
    assert [x for c in streamed for x in c.choices[0].logprobs.text_offset] == logprobs.text_offset


def test_logprobs_of_chats(api: OpenAI) -> None:
    choice = complete_chat(api, logprobs=True, top_logprobs=1).choices[0]
    content = choice.logprobs.content
    data = b"".join(bytes(one.bytes) for one in content)
    assert choice.message.content == data.decode("utf-8", "replace")
    assert all(len(one.top_logprobs) == 1 for one in content)
    streamed = [
        one
        for chunk in complete_chat(api, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content
    ]
    assert [one.token for one in streamed] == [one.token for one in content]


def test_chat_completion(api: OpenAI, http: httpx.Client) -> None:
    """Streams have OpenAI's form, and the prompt is what the chat template renders."""
    answer = complete_chat(api, max_tokens=openai.omit, max_completion_tokens=16)
    usage = {"include_usage": True}
    *chunks, last = complete_chat(api, stream=True, stream_options=usage)
    assert chunks[0].choices[0].delta.role == "assistant"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == answer.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason
    assert last.choices == [] and last.usage == answer.usage
    prompt = complete(api, prompt="User: Say something.\n\nAssistant:", max_tokens=16,
                      temperature=1.0)  # fmt: skip
    assert prompt.choices[0].text == streamed
    body = {"messages": [{"role": "user", "content": "Say something."}]}
    assert http.post("/tokenize", json=body).json()["count"] == answer.usage.prompt_tokens


def test_metrics_and_traces_of_drafts_agree(api: OpenAI) -> None:
    body = {"speculative": {"strategy": "speculative", "max_draft_tokens": 3, "trace": True}}
    chunks = list(complete(api, stream=True, extra_body=body))
    figures = chunks[-1].metrics["speculative_decoding"]
    assert figures["strategy"] == "speculative" and figures["num_spec_tokens"] == 3
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"]
    accepted = sum(j * rounds for j, rounds in enumerate(figures["acceptance_histogram"]))
    assert accepted == figures["num_accepted_draft_tokens"]
    assert chunks[-1].metrics["timings"]["time_to_first_token_ms"] > 0
    traces = [chunk.choices[0].trace for chunk in chunks]
    assert sum(len(one["draft"]) for one in traces) == figures["num_draft_tokens"]
    text = "".join(token["text"] for one in traces for token in one["tokens"])
    assert text == complete(api).choices[0].text
    for one in traces:
        drafted = [one["draft"][node]["token_id"] for node in one["accepted_nodes"]]
        assert [token["token_id"] for token in one["tokens"]][: len(drafted)] == drafted
    ends = Counter(one["draft_end"] for one in traces[1:])  # the first trace belongs to the prefill
    assert ends == figures["draft_ends"]


def test_prediction_changes_only_the_speed(api: OpenAI) -> None:
    plain = complete(api).choices[0].text
    body = {"prediction": {"type": "content", "content": PROMPT + plain},
            "speculative": {"strategy": "prompt_lookup", "max_draft_tokens": 8}}  # fmt: skip
    answer = complete(api, extra_body=body)
    assert answer.choices[0].text == plain
    assert answer.metrics["speculative_decoding"]["num_draft_tokens"] > 0


def test_model_list_with_a_trailing_slash(http: httpx.Client) -> None:
    assert http.get("/v1/models/").json() == http.get("/v1/models").json()


def test_models(api: OpenAI) -> None:
    (model,) = api.models.list().data
    assert model.id == MODEL and api.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError) as caught:
        api.completions.create(model="another", prompt="x")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_tokenize_and_detokenize_round_trip(http: httpx.Client) -> None:
    text = "naïve 🙂"
    tokenized = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert tokenized["max_model_len"] == 2048
    assert http.post("/detokenize", json={"tokens": tokenized["tokens"]}).json() == {"prompt": text}
    refused = http.post("/detokenize", json={"tokens": [5, 10**6]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tokens[1]"


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics", "/openapi.json"])
def test_operational_routes(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


async def test_concurrent_requests_of_the_async_client(base: str, api: OpenAI) -> None:
    expected = [complete(api, seed=seed, max_tokens=8).choices[0].text for seed in range(4)]
    async with AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:

        async def complete_one(seed: int) -> str:
            stream = await client.completions.create(
                model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0.8, seed=seed, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        assert await asyncio.gather(*map(complete_one, range(4))) == expected


def test_many_concurrent_requests_are_all_answered(api: OpenAI) -> None:
    def complete_one(seed: int) -> str:
        chunks = complete(api, seed=seed, max_tokens=8, stream=True)
        return "".join(chunk.choices[0].text for chunk in chunks)

    sequential = [complete_one(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(complete_one, range(8))) == sequential


def test_requests_beyond_the_session_limit_wait_for_their_turn(api: OpenAI) -> None:
    """A hundred clients, then one with a hundred prompts; sixteen sessions run at a time."""
    with ThreadPoolExecutor(100) as pool:
        separate = list(pool.map(lambda seed: complete(api, seed=seed, max_tokens=2), range(100)))
    batched = complete(api, prompt=[PROMPT] * 100, seed=7, max_tokens=2).choices
    assert {choice.text for choice in batched} == {separate[7].choices[0].text}


def test_playground_is_served_with_its_content_policy(http: httpx.Client) -> None:
    for address in ("/", "/playground"):
        assert http.get(address).headers["location"] == "playground/"
    icon = http.get("/favicon.ico")  # browsers request it for pages that name no icon
    assert icon.status_code == 200 and icon.headers["content-type"] == "image/svg+xml"
    page = http.get("/playground/")
    assert page.headers["content-type"].startswith("text/html") and "<main>" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    revalidated = http.get("/playground/", headers={"If-None-Match": page.headers["etag"]})
    assert revalidated.status_code == 304
    options = http.get("/playground/options").json()
    assert options["model"] == MODEL and options["default_strategy"] in options["strategies"]
    for outside in ("/playground/none", "/playground/%2e%2e/app.py"):
        assert http.get(outside).status_code == 404
