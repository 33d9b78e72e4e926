"""vLLM's further fields: token ids, special tokens, stop texts, truncation, continued messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from draftloop.config import bundled_model
from orchestrator.tokenizer import Tokenizer
from tests.e2e.http_client import PROMPT

TOKENIZER = Tokenizer(bundled_model("verifier"))
END = 0  # <|endoftext|>
CERTAIN = 100.0


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 11, **fields}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def chat(http: httpx.Client, messages: Sequence[tuple[str, str]], **fields: Any) -> httpx.Response:
    turns = [{"role": role, "content": content} for role, content in messages]
    return http.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 8, **fields})


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_token_ids_are_returned_with_the_text(http: httpx.Client) -> None:
    completion = complete(http, return_token_ids=True)
    assert completion["prompt_token_ids"] == ids(PROMPT) and len(completion["token_ids"]) == 24
    assert TOKENIZER.decode(completion["token_ids"]) == completion["text"]
    assert "token_ids" not in complete(http)
    answer = chat(http, [("user", "x")], return_token_ids=True).json()
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert len(answer["choices"][0]["token_ids"]) == 8


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_token_ids_are_streamed(http: httpx.Client, path: str) -> None:
    """The prompt's ids are sent once per choice, or once in all if the choices share a prompt."""
    kind: dict[str, Any] = {"prompt": PROMPT}
    if path != "completions":
        kind = {"messages": [{"role": "user", "content": "x"}]}
    body = {**kind, "max_tokens": 12, "n": 2, "seed": 3, "return_token_ids": True}
    whole = http.post(f"/v1/{path}", json=body).json()
    lines = http.post(f"/v1/{path}", json={**body, "stream": True}).text.split("\n\n")
    chunks = [httpx.Response(200, text=line[6:]).json() for line in lines[:-2]]
    for choice in whole["choices"]:
        parts = [one for chunk in chunks for one in chunk["choices"]]
        own_parts = [part for part in parts if part["index"] == choice["index"]]
        assert sum((part.get("token_ids", []) for part in own_parts), []) == choice["token_ids"]
        if path == "completions":
            prompts = [part["prompt_token_ids"] for part in own_parts if "prompt_token_ids" in part]
            assert prompts == [choice["prompt_token_ids"]] == [ids(PROMPT)]
    prompt_token_ids = [
        chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk
    ]
    assert all(prompt == whole["prompt_token_ids"] for prompt in prompt_token_ids)
    assert bool(prompt_token_ids) == (path != "completions")


def test_special_tokens_are_shown_when_requested(http: httpx.Client) -> None:
    """All but the token that ends the text, unless that is requested too."""
    biased: dict[str, Any] = {"logit_bias": {END: CERTAIN}, "max_tokens": 3}
    on = {"ignore_eos": True, "skip_special_tokens": False}
    assert complete(http, **biased, ignore_eos=True)["text"] == ""
    assert complete(http, **biased, **on)["text"] == 3 * "<|endoftext|>"
    assert complete(http, **biased, skip_special_tokens=False)["text"] == ""
    both = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert complete(http, **biased, **both)["text"] == "<|endoftext|>"


def test_stop_text_and_token_are_included_when_requested(http: httpx.Client) -> None:
    unstopped = complete(http, return_token_ids=True)
    stop, token = unstopped["text"][9:12], unstopped["token_ids"][6]
    at = unstopped["text"].index(stop)
    stopped_at_text = complete(http, stop=[stop])
    assert (stopped_at_text["text"], stopped_at_text["finish_reason"]) == (
        unstopped["text"][:at],
        "stop",
    )
    with_stop_text = complete(http, stop=[stop], include_stop_str_in_output=True)
    assert with_stop_text["text"] == unstopped["text"][: at + len(stop)]
    before = unstopped["token_ids"][: unstopped["token_ids"].index(token)]
    stopped_at_token = complete(http, stop_token_ids=[token])
    assert (stopped_at_token["text"], stopped_at_token["finish_reason"]) == (
        TOKENIZER.decode(before),
        "stop",
    )
    included = complete(http, stop_token_ids=[token], include_stop_str_in_output=True)
    assert included["text"] == TOKENIZER.decode([*before, token])


def test_prompt_is_truncated_to_the_requested_length(http: httpx.Client) -> None:
    long, end = "x = 1\n" * 600 + PROMPT, len(ids(PROMPT))
    truncated = complete(http, prompt=long, truncate_prompt_tokens=end, return_token_ids=True)
    assert truncated["prompt_token_ids"] == ids(long)[-end:]
    assert complete(http, prompt=long, truncate_prompt_tokens=end, echo=True)["text"].startswith(
        TOKENIZER.decode(ids(long)[-end:])
    )
    whole = complete(http, truncate_prompt_tokens=999, return_token_ids=True)
    assert whole["prompt_token_ids"] == ids(PROMPT)


def test_final_message_is_continued(http: httpx.Client) -> None:
    """The prompt ends with that message: its turn is not closed and no other is opened."""
    turns = [("user", "Count."), ("assistant", "1, 2, 3,  ")]
    answer = chat(http, turns, continue_final_message=True, return_token_ids=True)
    prompt = TOKENIZER.decode(answer.json()["prompt_token_ids"])
    assert prompt.endswith("Assistant: 1, 2, 3,  ")
    body = {"messages": [{"role": role, "content": text} for role, text in turns]}
    tokenized = http.post("/tokenize", json={**body, "continue_final_message": True}).json()
    assert tokenized["tokens"] == answer.json()["prompt_token_ids"]


@pytest.mark.parametrize(
    ("turns", "fields"),
    [
        ([("user", "x")], {"add_generation_prompt": True}),
        ([("user", "x"), ("assistant", " ")], {}),
    ],
)
def test_final_messages_that_cannot_be_continued_are_refused(
    http: httpx.Client, turns: list[tuple[str, str]], fields: dict[str, Any]
) -> None:
    answer = chat(http, turns, continue_final_message=True, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_final_message"
