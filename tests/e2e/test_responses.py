"""OpenAI's Responses API by OpenAI's client: text, streams, tools, reasoning, refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.e2e.conftest import PERSON
from tests.e2e.http_client import MODEL, complete_chat
from tests.e2e.reasoning import HELP, SEEDS, SHOWN

QUESTION = "Say something."
SCHEMA = json.loads(PERSON)
TOOLS: list[Any] = [
    {"type": "function", "name": "add_person", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "list_people", "parameters": None, "strict": None},
]
NAMED = {"type": "function", "name": "add_person"}


class Digit(BaseModel):
    """The form of a structured answer."""

    a: int = Field(ge=0, le=9)


def respond(api: OpenAI, seed: int = 11, **fields: Any) -> Any:
    body = {"input": QUESTION, "max_output_tokens": 16, **fields}
    extra = {"seed": seed, **body.pop("extra_body", {})}
    return api.responses.create(model=MODEL, **body, extra_body=extra)


def events(api: OpenAI, **fields: Any) -> list[Any]:
    """The events of the same request streamed; they must be numbered from 0 without a gap."""
    received = list(respond(api, stream=True, **fields))
    assert [event.sequence_number for event in received] == list(range(len(received)))
    return received


def without_ids(response: Any) -> Any:
    """The answer without what differs between two answers of one request."""
    plain = response.model_dump(exclude={"id", "created_at", "metrics"})
    for item in plain["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return plain


def test_token_count_equals_the_usage_of_the_answer(api: OpenAI) -> None:
    fields: Any = {"model": MODEL, "input": QUESTION, "instructions": "Be brief."}
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    for more in ({}, {"tools": TOOLS, "tool_choice": allowed}):
        answer = api.responses.create(**fields, **more, max_output_tokens=1)
        count = api.responses.input_tokens.count(**fields, **more)
        assert answer.usage is not None and count.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_answer_equals_the_chat_api(api: OpenAI, seed: int) -> None:
    """The answer equals that of the chat API, whole and streamed, with drafts and without."""
    messages: Any = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}
    ]  # fmt: skip
    expected = complete_chat(api, seed=seed, messages=messages)
    whole = respond(api, seed, instructions="Be brief.")
    assert whole.output_text == expected.choices[0].message.content
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (
        expected.usage.prompt_tokens, expected.usage.completion_tokens,
    )  # fmt: skip
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (whole.instructions, whole.max_output_tokens, whole.store) == ("Be brief.", 16, False)
    plain = {"speculative": {"strategy": "autoregressive"}}
    drafted_or_not = respond(api, seed, instructions="Be brief.", extra_body=plain)
    assert drafted_or_not.output_text == whole.output_text
    received = events(api, seed=seed, instructions="Be brief.")
    assert [event.type for event in received[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert [event.type for event in received[-4:]] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete",
    ]  # fmt: skip
    deltas = [event.delta for event in received if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == received[-4].text
    last = without_ids(received[-1].response)
    assert last["output"] == without_ids(whole)["output"]
    assert {received[0].response.id, received[1].response.id, received[-1].response.id} == {
        received[0].response.id
    }


@pytest.mark.parametrize(
    "question",
    [
        [{"role": "user", "content": QUESTION}],
        [{"type": "message", "role": "user", "content": QUESTION}],
        [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
    ],
)
def test_equivalent_inputs_give_the_same_answer(api: OpenAI, question: Any) -> None:
    assert respond(api, input=question).output_text == respond(api).output_text


def test_items_of_an_answer_can_be_sent_back(api: OpenAI) -> None:
    """The client's items can be sent back: the prompt is that of the same chat messages."""
    first = respond(api)
    more = {"role": "user", "content": "Go on."}
    items = [{"role": "user", "content": QUESTION}, *first.to_dict()["output"], more]
    second = respond(api, input=items)
    messages: Any = [items[0], {"role": "assistant", "content": first.output_text}, more]
    expected = complete_chat(api, messages=messages)
    assert second.output_text == expected.choices[0].message.content
    assert second.usage.input_tokens == expected.usage.prompt_tokens


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_required_function_call(api: OpenAI, choice: Any, seed: int) -> None:
    fields: dict[str, Any] = {
        "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False,
        "max_output_tokens": 400,
    }  # fmt: skip
    answer = respond(api, seed, **fields)
    (call,) = answer.output
    assert (call.type, call.status, answer.status) == ("function_call", "completed", "completed")
    schemas = {"add_person": SCHEMA, "list_people": {"type": "object", "maxProperties": 0}}
    jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    arguments: Any = {"model": MODEL, "input": QUESTION, "extra_body": {"seed": seed}, **fields}
    with api.responses.stream(**arguments) as stream:
        received: list[Any] = list(stream)
        final: Any = stream.get_final_response()
    (streamed,) = final.output
    deltas = [e.delta for e in received if e.type == "response.function_call_arguments.delta"]
    assert streamed.name == call.name and "".join(deltas) == streamed.arguments == call.arguments
    tool_result = {"type": "function_call_output", "call_id": call.call_id, "output": "added"}
    items: Any = [{"role": "user", "content": QUESTION}, call.to_dict(), tool_result]
    assert respond(api, input=items, tools=TOOLS).output_text


@pytest.mark.parametrize("is_named", [False, True])
def test_call_of_a_function_in_a_namespace(api: OpenAI, is_named: bool) -> None:
    """The call names the function and its namespace; sent back, both are accepted."""
    name: dict[str, Any] = {"name": "add_person", "namespace": "people"}
    namespace = {"type": "namespace", "name": "people", "description": "", "tools": TOOLS[:1]}
    fields: dict[str, Any] = {
        "tools": [namespace], "max_output_tokens": 400,
        "tool_choice": {"type": "function", **name} if is_named else "required",
        "parallel_tool_calls": False,
    }  # fmt: skip
    answer = respond(api, **fields)
    (call,) = [item.to_dict() for item in answer.output]
    assert {key: call[key] for key in name} == name
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    (added, done) = [
        event.item.to_dict() for event in events(api, **fields) if "output_item" in event.type
    ]
    assert {key: added[key] for key in name} == {key: done[key] for key in name} == name
    assert answer.tools[0].to_dict()["tools"][0]["name"] == "add_person"
    tool_result = {"type": "function_call_output", "call_id": call["call_id"], "output": "added"}
    items: Any = [{"role": "user", "content": QUESTION}, call, tool_result]
    assert respond(api, input=items, tools=[namespace]).output_text


@pytest.mark.parametrize("is_named", [False, True])
def test_custom_tool_is_called_with_text(api: OpenAI, is_named: bool) -> None:
    """A custom tool gets plain text, whole and streamed, and its call can be sent back."""
    tool = {"type": "custom", "name": "write", "description": "Writes it down."}
    fields: dict[str, Any] = {
        "tools": [tool], "max_output_tokens": 200, "parallel_tool_calls": False,
        "tool_choice": {"type": "custom", "name": "write"} if is_named else "required",
    }  # fmt: skip
    (call,) = respond(api, **fields).output
    assert (call.type, call.name) == ("custom_tool_call", "write") and call.input
    received = events(api, **fields)
    assert list(dict.fromkeys(event.type for event in received))[2:-1] == [
        "response.output_item.added", "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done", "response.output_item.done",
    ]  # fmt: skip
    deltas = [event.delta for event in received if event.type.endswith("input.delta")]
    (streamed,) = received[-1].response.output
    assert "".join(deltas) == streamed.input == call.input
    tool_result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "written"}
    items: Any = [{"role": "user", "content": QUESTION}, call.to_dict(), tool_result]
    assert respond(api, input=items, tools=[tool]).output_text


def test_openais_server_tools_are_ignored(api: OpenAI) -> None:
    without = respond(api)
    answer = respond(api, tools=[{"type": "web_search"}])
    assert answer.tools == [] and answer.output_text == without.output_text


def test_structured_output(api: OpenAI) -> None:
    answer = api.responses.parse(
        model=MODEL, input=QUESTION, text_format=Digit, max_output_tokens=100, temperature=1
    )
    assert isinstance(answer.output_parsed, Digit) and answer.status == "completed"


def test_log_probabilities(api: OpenAI) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    ((part,),) = [item.content for item in respond(api, **fields).output]
    assert len(part.logprobs) == 16 and all(len(one.top_logprobs) == 2 for one in part.logprobs)
    received = [e for e in events(api, **fields) if e.type == "response.output_text.delta"]
    streamed = [one.logprob for event in received for one in event.logprobs]
    assert streamed == [one.logprob for one in part.logprobs]
    chat = complete_chat(api, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert streamed == [one.logprob for one in chat]
    assert respond(api).output[0].content[0].logprobs == []


def test_reasoning_is_a_separate_item(reasoner: OpenAI) -> None:
    both = 0
    for seed in SEEDS:
        fields = {"input": SHOWN, "max_output_tokens": 120, "extra_body": {"logit_bias": HELP}}
        answer = respond(reasoner, seed, **fields)
        messages: Any = [{"role": "user", "content": SHOWN}]
        chat_fields: Any = {
            "seed": seed,
            "max_tokens": 120,
            "messages": messages,
            "logit_bias": HELP,
        }
        expected = complete_chat(reasoner, **chat_fields)
        message = expected.choices[0].message
        thought = "".join(
            part.text for item in answer.output if item.type == "reasoning" for part in item.content
        )
        assert thought == (getattr(message, "reasoning", None) or "")
        assert answer.output_text == (message.content or "")
        kinds = [item.type for item in answer.output]
        both += kinds == ["reasoning", "message"]
        details = expected.usage.completion_tokens_details
        assert answer.usage.output_tokens_details.reasoning_tokens == details.reasoning_tokens
        received = events(reasoner, seed=seed, **fields)
        assert without_ids(received[-1].response)["output"] == without_ids(answer)["output"]
        deltas = [
            event.delta for event in received if event.type == "response.reasoning_text.delta"
        ]
        assert "".join(deltas) == thought
        items = [{"role": "user", "content": SHOWN}, *answer.to_dict()["output"]]
        respond(reasoner, input=[*items, {"role": "user", "content": "x"}], max_output_tokens=1)
    assert both >= 2  # the others do not end their reasoning


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": "x " * 10_000}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
         "input[0].name"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"extra_body": {"max_tokens": 1}}, "max_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": "all"}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{}]}]}, "tools[0].tools[0].name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "objct"}}}},
         "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_requests_are_refused_with_the_clients_field(
    api: OpenAI, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """The error names the field as the client wrote it, before anything is streamed."""
    with pytest.raises(openai.BadRequestError) as caught:
        respond(api, **fields, stream=stream)
    assert caught.value.param == param


def test_answer_without_max_tokens_ends_by_itself(api: OpenAI) -> None:
    """The context is the only limit, as with chats, where neither client nor server sets one."""
    fields: dict[str, Any] = {"extra_body": {"ignore_eos": True}, "temperature": 0}
    answer = respond(api, max_output_tokens=None, **fields)
    assert answer.usage.total_tokens == 2048 and answer.max_output_tokens is None
    chat = complete_chat(api, max_tokens=None, **fields)
    assert chat.usage.total_tokens == 2048 and chat.choices[0].finish_reason == "length"


def test_pages_of_other_origins_get_no_cors_headers(base: str) -> None:
    """Without the setting, no CORS header allows pages of other origins to call."""
    headers = {"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{base}/v1/responses", headers=headers)
    assert "access-control-allow-origin" not in answer.headers
