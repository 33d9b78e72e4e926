"""Anthropic's Messages API by its own client: text, streams, tools, thinking, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import jsonschema
import pytest
from anthropic import Anthropic, beta_tool
from openai import OpenAI

from tests.e2e.conftest import PERSON
from tests.e2e.http_client import MODEL, complete_chat
from tests.e2e.reasoning import HELP, SEEDS, SHOWN

QUESTION = "Say something."
ASKED = [{"role": "user", "content": QUESTION}]
SCHEMA = json.loads(PERSON)
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [
    {"name": "add_person", "description": "Adds one.", "input_schema": SCHEMA},
    {"name": "list_people", "input_schema": NOTHING},
]
NAMED = {"type": "tool", "name": "add_person"}


@pytest.fixture(scope="module")
def claude(base: str) -> Iterator[Anthropic]:
    """Anthropic's own client of the stack."""
    with Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        yield client


def _request_arguments(fields: dict[str, Any], seed: int) -> dict[str, Any]:
    arguments = {"messages": ASKED, "max_tokens": 16, "model": MODEL, **fields}
    return {**arguments, "extra_body": {"seed": seed, **arguments.pop("extra_body", {})}}


def send(client: Anthropic, seed: int = 11, **fields: Any) -> Any:
    return client.messages.create(**_request_arguments(fields, seed))


def events(client: Anthropic, seed: int = 11, **fields: Any) -> tuple[list[Any], Any]:
    """The events of the same request streamed, and the message that the client assembles."""
    with client.messages.stream(**_request_arguments(fields, seed)) as stream:
        return list(stream), stream.get_final_message()


def content(message: Any) -> list[dict[str, Any]]:
    """The content blocks without their ids, which differ in every answer."""
    blocks = [block.to_dict() for block in message.content]
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_answer_equals_the_chat_api(api: OpenAI, claude: Anthropic, seed: int) -> None:
    """The answer equals that of the chat API, whole and streamed, with drafts and without."""
    messages: Any = [{"role": "system", "content": "Be brief."}, *ASKED]
    expected = complete_chat(api, seed=seed, messages=messages)
    whole = send(claude, seed, system="Be brief.")
    assert content(whole) == [{"type": "text", "text": expected.choices[0].message.content}]
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", MODEL)
    assert (whole.stop_reason, whole.stop_sequence) == ("max_tokens", None)
    usage = whole.usage
    assert usage.output_tokens == expected.usage.completion_tokens
    both = usage.input_tokens + usage.cache_read_input_tokens
    assert both == expected.usage.prompt_tokens
    plain = {"speculative": {"strategy": "autoregressive"}}
    assert content(send(claude, seed, system="Be brief.", extra_body=plain)) == content(whole)
    received, final = events(claude, seed, system="Be brief.")
    assert content(final) == content(whole) and final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == usage.output_tokens
    kinds = [event.type for event in received if event.type not in ("text", "content_block_delta")]
    assert kinds == [
        "message_start", "content_block_start", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip


def test_token_count_equals_the_usage_of_the_answer(claude: Anthropic) -> None:
    count = claude.messages.count_tokens(model=MODEL, messages=ASKED, system="Be brief.")  # type: ignore[arg-type]
    usage = send(claude, system="Be brief.", max_tokens=1).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    long: Any = [{"role": "user", "content": "x " * 10_000}]
    assert claude.messages.count_tokens(model=MODEL, messages=long).input_tokens > 2048


def test_stop_reasons(claude: Anthropic) -> None:
    plain = content(send(claude, max_tokens=40))[0]["text"]
    letter = next(letter for letter in plain[5:] if letter.isalpha())
    answer = send(claude, max_tokens=40, stop_sequences=["\0", letter])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", letter)
    assert content(answer)[0]["text"] == plain[: plain.index(letter)]
    _, final = events(claude, max_tokens=40, stop_sequences=["\0", letter])
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", letter)
    every = {"logit_bias": {"0": 100.0}}  # the end-of-text token
    assert send(claude, extra_body=every).stop_reason == "end_turn"


def test_content_blocks_of_an_answer_can_be_sent_back(api: OpenAI, claude: Anthropic) -> None:
    """The client's blocks can be sent back: the prompt is that of the same chat messages."""
    first = send(claude)
    more = {"role": "user", "content": [{"type": "text", "text": "Go on."}]}
    second = send(claude, messages=[*ASKED, {"role": "assistant", "content": first.content}, more])
    text = content(first)[0]["text"]
    messages: Any = [
        *ASKED, {"role": "assistant", "content": text}, {"role": "user", "content": "Go on."},
    ]  # fmt: skip
    expected = complete_chat(api, messages=messages)
    assert content(second)[0]["text"] == expected.choices[0].message.content


def test_partial_assistant_message_is_continued(api: OpenAI, claude: Anthropic) -> None:
    messages: Any = [*ASKED, {"role": "assistant", "content": "import"}]
    body = {"continue_final_message": True, "add_generation_prompt": False}
    expected = complete_chat(api, messages=messages, extra_body=body)
    answer = send(claude, messages=messages)
    assert content(answer)[0]["text"] == expected.choices[0].message.content


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("choice", [{"type": "any"}, NAMED], ids=["any", "named"])
def test_required_tool_call(claude: Anthropic, choice: Any, seed: int) -> None:
    single_choice = {**choice, "disable_parallel_tool_use": True}
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": single_choice, "max_tokens": 400}
    answer = send(claude, seed, **fields)
    (call,) = answer.content
    assert (call.type, answer.stop_reason) == ("tool_use", "tool_use")
    schemas = {"add_person": SCHEMA, "list_people": NOTHING}
    jsonschema.validate(call.input, schemas[call.name])
    received, final = events(claude, seed, **fields)
    assert content(final) == content(answer)
    pieces = [event.partial_json for event in received if event.type == "input_json"]
    assert json.loads("".join(pieces)) == call.input
    tool_result = {"type": "tool_result", "tool_use_id": call.id, "content": "added"}
    messages: Any = [
        *ASKED, {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [tool_result]},
    ]  # fmt: skip
    assert send(claude, messages=messages, tools=TOOLS).content


def test_tool_call_cut_by_the_token_limit_is_reported_in_part(claude: Anthropic) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 40}
    answer = send(claude, **fields)
    assert answer.stop_reason == "max_tokens"
    assert [block.type for block in answer.content] == ["tool_use"]
    assert content(events(claude, **fields)[1])[0]["name"] == "add_person"


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_tool_runner(claude: Anthropic, stream: bool) -> None:
    """Anthropic's tool runner, which executes the calls and sends the results back."""
    calls = []

    @beta_tool
    def list_people(first: Literal["Ann", "Bob"]) -> str:
        """Lists them, beginning with the first."""
        calls.append(first)
        return "Bob"

    runner: Any = claude.beta.messages.tool_runner(
        model=MODEL, max_tokens=400, max_iterations=2, stream=stream, tools=[list_people],
        messages=[{"role": "user", "content": QUESTION}], extra_body={"seed": 11},
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )  # fmt: skip
    answers = [one.get_final_message() if stream else one for one in runner]
    assert [answer.stop_reason for answer in answers] == ["tool_use", "tool_use"]
    assert calls[0] == answers[0].content[0].input["first"]
    read = [one.usage.input_tokens + one.usage.cache_read_input_tokens for one in answers]
    assert read[1] > read[0]  # the second prompt also has the first call and its result


def test_anthropics_server_tools_are_ignored(claude: Anthropic) -> None:
    search: Any = [{"type": "web_search_20250305", "name": "web_search"}]
    assert content(send(claude, tools=search)) == content(send(claude))


def test_structured_output(claude: Anthropic) -> None:
    schema = {"type": "object", "additionalProperties": False, "required": ["a"],
              "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}}  # fmt: skip
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = send(claude, max_tokens=100, output_config=form)
    jsonschema.validate(json.loads(content(answer)[0]["text"]), schema)
    assert answer.stop_reason == "end_turn"


def test_thinking_is_a_separate_block(reasoner: OpenAI) -> None:
    both = 0
    address = str(reasoner.base_url).removesuffix("/v1/")
    messages: Any = [{"role": "user", "content": SHOWN}]
    fields: dict[str, Any] = {
        "messages": messages, "max_tokens": 120, "extra_body": {"logit_bias": HELP},
    }  # fmt: skip
    with Anthropic(base_url=address, api_key="none", max_retries=0) as claude:
        for seed in SEEDS:
            answer = send(claude, seed, **fields)
            chat_fields: Any = {
                "seed": seed,
                "max_tokens": 120,
                "logit_bias": HELP,
                "messages": messages,
            }
            message = complete_chat(reasoner, **chat_fields).choices[0].message
            blocks = content(answer)
            thought = [block["thinking"] for block in blocks if block["type"] == "thinking"]
            text = [block["text"] for block in blocks if block["type"] == "text"]
            assert "".join(thought) == (getattr(message, "reasoning", None) or "")
            assert "".join(text) == (message.content or "")
            both += [block["type"] for block in blocks] == ["thinking", "text"]
            assert content(events(claude, seed, **fields)[1]) == blocks
            continued = [*messages, {"role": "assistant", "content": answer.content}, *messages]
            send(claude, **{**fields, "messages": continued, "max_tokens": 1})
        without_thinking = {**fields, "thinking": {"type": "disabled"}}
        assert [block["type"] for block in content(send(claude, **without_thinking))] == ["text"]
    assert both >= 2  # the others do not end their reasoning


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x " * 10_000}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*ASKED, {"role": "assistant", "content": " "}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "objct"}}}},
         "output_config.format"),
        ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"extra_body": {"mcp_servers": [{}]}}, "mcp_servers"),
        ({"extra_body": {"what": 1}}, "what"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_requests_are_refused_with_the_clients_field(
    claude: Anthropic, fields: Any, field: str, stream: bool
) -> None:
    """The error names the field as the client wrote it, before anything is streamed."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        send(claude, **fields, stream=stream)
    error: Any = caught.value.body
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(f"{field}: ")


def test_models_in_anthropics_format(claude: Anthropic) -> None:
    page = claude.models.list()
    (model,) = page.data
    assert not page.has_more and page.last_id == model.id == model.display_name == MODEL
    assert model.type == "model" and model.created_at.tzinfo is not None
    assert claude.models.retrieve(MODEL) == model


def test_answers_and_errors_carry_the_request_id(claude: Anthropic) -> None:
    headers = {"X-Request-Id": "my-own-id"}
    answer = send(claude, extra_headers=headers)
    assert answer._request_id == "my-own-id"
    with pytest.raises(anthropic.BadRequestError) as caught:
        send(claude, max_tokens=-1, extra_headers=headers)
    assert caught.value.request_id == "my-own-id"


def test_unknown_model_is_not_found(claude: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="another", messages=ASKED, max_tokens=1)  # type: ignore[arg-type]
    error: Any = caught.value.body
    assert error["error"]["type"] == "not_found_error"
