"""Answers with reasoning by OpenAI's client: whole, streamed, drafted, and with a grammar."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from tests.e2e.http_client import complete_chat
from tests.e2e.reasoning import HELP, SEEDS, SHOWN

PLAIN = {"speculative": {"strategy": "autoregressive"}}


def ask(client: OpenAI, seed: int, **fields: Any) -> Any:
    messages = [{"role": "user", "content": SHOWN}]
    body = {"max_tokens": 120, "logit_bias": HELP, "seed": seed, "messages": messages, **fields}
    return complete_chat(client, **body)


def message(client: OpenAI, seed: int, **fields: Any) -> tuple[str | None, str | None]:
    (choice,) = ask(client, seed, **fields).choices
    return getattr(choice.message, "reasoning", None), choice.message.content


def streamed(client: OpenAI, seed: int, **fields: Any) -> tuple[str | None, str | None]:
    deltas = [chunk.choices[0].delta for chunk in ask(client, seed, stream=True, **fields)]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return reasoning or None, "".join(delta.content or "" for delta in deltas) or None


DIGIT: Any = {"type": "object", "additionalProperties": False, "required": ["a"],
              "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}}  # fmt: skip
JSON: Any = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": DIGIT}}
}
FORMS: list[Any] = [
    JSON,
    {"extra_body": {"structured_outputs": {"choice": [" yes", "no"]}}},
]


@pytest.mark.parametrize("form", FORMS, ids=["json", "choice"])
def test_grammar_applies_to_the_content_after_the_reasoning(reasoner: OpenAI, form: Any) -> None:
    """A grammar holds for the content after the reasoning: whole, streamed, drafted, plain."""
    answers = [message(reasoner, seed, **form) for seed in SEEDS]
    for seed, (reasoning, content) in zip(SEEDS, answers, strict=True):
        if content is not None and "response_format" in form:
            jsonschema.validate(json.loads(content), DIGIT)
        else:
            assert content in (" yes", "no", None)
        assert streamed(reasoner, seed, **form) == (reasoning, content)
        plain = {**form, "extra_body": {**form.get("extra_body", {}), **PLAIN}}
        assert message(reasoner, seed, **plain) == (reasoning, content)
    assert sum(None not in answer for answer in answers) >= 2  # others do not end it or have none


def test_content_is_the_same_with_reasoning_shown_or_hidden(reasoner: OpenAI) -> None:
    """Hiding the reasoning leaves the content as it is; a template can switch reasoning off."""
    reasoned = next(seed for seed in SEEDS if None not in message(reasoner, seed, **JSON))
    hidden = message(reasoner, reasoned, **JSON, extra_body={"include_reasoning": False})
    assert hidden == (None, message(reasoner, reasoned, **JSON)[1])
    thinking_off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert message(reasoner, reasoned, extra_body=thinking_off, max_tokens=8)[0] is None


def test_reasoning_sent_back_is_part_of_the_prompt(reasoner: OpenAI) -> None:
    answer = ask(reasoner, 2, **JSON).choices[0].message
    turns = [
        {"role": "user", "content": SHOWN},
        answer.model_dump(),
        {"role": "user", "content": "x"},
    ]
    assert ask(reasoner, 2, messages=turns, max_tokens=4).usage.completion_tokens == 4


def test_reasoning_tokens_are_counted(reasoner: OpenAI) -> None:
    """The tokens before the end mark count as reasoning, whole and streamed, shown or hidden."""
    seed = next(seed for seed in SEEDS if None not in message(reasoner, seed, **JSON))
    whole = ask(reasoner, seed, **JSON)
    reasoning_tokens = whole.usage.completion_tokens_details.reasoning_tokens
    assert 0 < reasoning_tokens < whole.usage.completion_tokens
    hidden = ask(reasoner, seed, **JSON, extra_body={"include_reasoning": False})
    assert hidden.usage.completion_tokens_details.reasoning_tokens == reasoning_tokens
    *_, last = ask(reasoner, seed, **JSON, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.reasoning_tokens == reasoning_tokens
    thinking_off = {"chat_template_kwargs": {"enable_thinking": False}}
    plain = ask(reasoner, seed, extra_body=thinking_off, max_tokens=8)
    assert plain.usage.completion_tokens_details.reasoning_tokens == 0
