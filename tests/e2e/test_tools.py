"""Tool calls of chats, by OpenAI's client: required, optional, and answered."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import PERSON
from tests.e2e.http_client import complete_chat

SCHEMA = json.loads(PERSON)
TOOLS: list[Any] = [
    {"type": "function", "function": {
        "name": "add_person", "description": "Adds one.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "list_people"}},
]  # fmt: skip
NAMED = {"type": "function", "function": {"name": "add_person"}}
SCHEMAS = {"add_person": SCHEMA, "list_people": {"type": "object", "maxProperties": 0}}
PLAIN = {"speculative": {"strategy": "autoregressive"}}


def calls_of(message: Any) -> list[tuple[str, str]]:
    """Names and arguments of the calls, whose ids must differ."""
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


def streamed(chunks: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls and finish reason, assembled as clients do."""
    content, reason = "", ""
    calls: list[tuple[str, str]] = []
    for chunk in chunks:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.id:
                assert call.index == len(calls) and call.type == "function"
                calls.append((call.function.name, ""))
            name, arguments = calls[call.index]
            calls[call.index] = name, arguments + call.function.arguments
    return content, calls, reason


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_required_tool_call(api: OpenAI, choice: Any, seed: int) -> None:
    """Whole and streamed, with drafts and without: the same calls, valid by the schemas."""
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": choice,
        "seed": seed,
        "max_tokens": 400,
    }
    if choice == "required":
        fields["parallel_tool_calls"] = False
    (answer,) = complete_chat(api, **fields).choices
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    calls = calls_of(answer.message)
    ((name, arguments),) = calls
    assert choice == "required" or name == "add_person"
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert calls == calls_of(complete_chat(api, **fields, extra_body=PLAIN).choices[0].message)
    assert streamed(complete_chat(api, **fields, stream=True)) == ("", calls, "tool_calls")


def test_several_calls(api: OpenAI) -> None:
    """The model may make several calls; here only `max_tokens` ends them."""
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": "required",
        "seed": 5,
        "max_tokens": 300,
    }
    several = [complete_chat(api, **{**fields, "seed": seed}).choices[0] for seed in range(6)]
    assert max(len(one.message.tool_calls) for one in several) > 1
    for one in several:
        for name, arguments in calls_of(one.message)[
            : None if one.finish_reason != "length" else -1
        ]:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def test_each_choice_makes_its_own_call(api: OpenAI) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 400}
    both = [
        calls_of(choice.message) for choice in complete_chat(api, **fields, seed=7, n=2).choices
    ]
    single = [
        calls_of(complete_chat(api, **fields, seed=seed).choices[0].message) for seed in (7, 8)
    ]
    assert both == single and both[0] != both[1]


FORM: Any = {"type": "json_schema", "json_schema": {"name": "digit", "schema": {
    "type": "object", "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["digit"], "additionalProperties": False}}}  # fmt: skip


def test_answer_is_either_a_call_or_the_response_format(api: OpenAI) -> None:
    """With tools and a response format, an answer is one or the other, drafted or not."""
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "response_format": FORM,
        "max_tokens": 400,
        "parallel_tool_calls": False,
    }
    kinds = set()
    for seed in range(12):
        (answer,) = complete_chat(api, **fields, seed=seed).choices
        (plain,) = complete_chat(api, **fields, seed=seed, extra_body=PLAIN).choices
        if answer.message.tool_calls:
            for name, arguments in calls_of(answer.message):
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            assert calls_of(answer.message) == calls_of(plain.message)
            assert answer.finish_reason == "tool_calls" and answer.message.content is None
        else:
            content = json.loads(answer.message.content)
            jsonschema.validate(content, FORM["json_schema"]["schema"])
            assert answer.message.content == plain.message.content
        kinds.add(bool(answer.message.tool_calls))
    assert kinds == {True, False}


def test_response_format_does_not_affect_a_required_call(api: OpenAI) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "seed": 3, "max_tokens": 400}
    with_form = complete_chat(api, **fields, response_format=FORM).choices[0].message
    assert calls_of(with_form) == calls_of(complete_chat(api, **fields).choices[0].message)


def test_answer_without_a_call(api: OpenAI) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "temperature": 0}
    (answer,) = complete_chat(api, **fields).choices
    assert answer.message.tool_calls is None and answer.finish_reason == "length"
    content, calls, reason = streamed(complete_chat(api, **fields, stream=True))
    assert (content.strip(), calls, reason) == (answer.message.content.strip(), [], "length")


def test_forbidden_tools_are_not_in_the_prompt(api: OpenAI) -> None:
    without = complete_chat(api).usage.prompt_tokens
    assert complete_chat(api, tools=TOOLS, tool_choice="none").usage.prompt_tokens == without
    assert complete_chat(api, tools=TOOLS).usage.prompt_tokens > without


def test_tool_results_can_be_sent_back(api: OpenAI) -> None:
    """The client's own message with the call, and the tool's answer, are accepted as messages."""
    question: Any = {"role": "user", "content": "Who is there?"}
    fields: dict[str, Any] = {"tools": TOOLS, "max_tokens": 400, "seed": 1}
    first = complete_chat(api, **fields, messages=[question], tool_choice=NAMED).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "added"}
    messages = [question, first.model_dump(), result]
    second = complete_chat(api, **{**fields, "max_tokens": 8}, messages=messages)
    assert second.choices[0].message.content
    body = {"messages": messages, "tools": TOOLS}
    root = str(api.base_url).removesuffix("/v1/")
    tokens = httpx.post(f"{root}/tokenize", json=body).json()["count"]
    assert tokens == second.usage.prompt_tokens


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tools", {"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "objct"}}}], "tool_choice": "required"}),
        ("tools", {"tools": [*TOOLS, {"type": "function", "function": {
            "name": "g", "parameters": {"type": "objct"}}}], "tool_choice": "required"}),
        ("tools", {"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "objct"}}}], "response_format": FORM}),
        ("response_format", {"tools": TOOLS, "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objct"}}}}),
        ("tool_choice.function.name", {"tools": TOOLS[1:], "tool_choice": NAMED}),
        ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
        ("ignore_eos", {"tools": TOOLS, "tool_choice": NAMED, "extra_body": {"ignore_eos": True}}),
    ],
)  # fmt: skip
def test_invalid_tools_are_refused_with_the_field(
    api: OpenAI, field: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete_chat(api, **changes)
    assert caught.value.param == field
    if field == "tools":  # of the client's schema, not of the grammar that we combined from all
        assert "Invalid type: objct" in str(caught.value) and "lark" not in str(caught.value)
