"""The Messages API: input turns, output blocks, and streams that fail."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from draftloop.errors import InvalidInput, Overloaded
from orchestrator.figures import Piece
from orchestrator.gateway.anthropic.answer import MessageAnswer
from orchestrator.gateway.anthropic.body import MessagesBody
from orchestrator.gateway.anthropic.names import own_names
from orchestrator.gateway.anthropic.output import KINDS
from orchestrator.gateway.chat_reader import PLAIN
from orchestrator.gateway.errors import Unsupported, problem
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.messages import UNREADABLE_FILE, UNSEEN_IMAGE
from orchestrator.gateway.output import COMPLETED, Output
from orchestrator.gateway.parts import CallPart, Content, Part, Parts, Reasoning
from orchestrator.gateway.runs import Step
from orchestrator.key_file import KeyEntry, hash_of, new_key
from tests.support.gateway import gateway

CACHED = {"cache_control": {"type": "ephemeral"}}
USER = {"role": "user", "content": [{"type": "text", "text": "x", **CACHED}]}
CALL = {
    "type": "tool_use",
    "id": "c1",
    "name": "f",
    "input": {"a": "é"},
    "caller": {"type": "direct"},
}
ANSWER = {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "?"},
    {"type": "text", "text": "yes", "citations": None}, CALL,
]}  # fmt: skip
TWO = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
RETURNED = {"type": "tool_result", "tool_use_id": "c1", "content": TWO, "is_error": True}
# From Claude Code's tool search, about tools that it had declared as deferred.
TOOL_REFERENCES = [{"type": "tool_reference", "tool_name": name} for name in ("weather", "g")]
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
PDF = {"type": "document", "source": {"type": "base64", "data": ""}, "title": "a.pdf"}
PLAIN_FILE = {"type": "document", "source": {"type": "text", "data": "hello"}, "title": None}
RESULT = {"type": "search_result", "title": "A page", "source": "http://x", "content": TWO}
WEATHER = {"name": "weather", "input_schema": {"type": "object"}, "strict": True, **CACHED}
DEFINED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": WEATHER}}


def body(**fields: Any) -> MessagesBody:
    return MessagesBody.model_validate({"messages": [USER], **fields})


def chat_messages(turns: list[Any], **fields: Any) -> list[dict[str, Any]]:
    chat = body(messages=turns, **fields).chat
    return [
        message.model_dump(exclude_none=True, exclude={"tool_calls"}) for message in chat.messages
    ]


def test_assistant_blocks_become_one_message() -> None:
    chat = body(messages=[USER, ANSWER, {"role": "user", "content": [RETURNED]}]).chat
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool"]
    answer = chat.messages[1]
    assert (answer.reasoning, answer.content) == ("hm", "yes")
    assert answer.tool_calls is not None
    (call,) = answer.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("c1", "f", '{"a": "é"}')
    assert (chat.messages[2].tool_call_id, chat.messages[2].content) == ("c1", "one\ntwo")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([RETURNED, *TWO], [("tool", "one\ntwo"), ("user", "one\ntwo")]),
        ([TWO[0], RETURNED, TWO[1]], [("user", "one"), ("tool", "one\ntwo"), ("user", "two")]),
        ([{"type": "tool_result", "tool_use_id": "c1"}], [("tool", "")]),
        ([{**RETURNED, "content": TOOL_REFERENCES}], [("tool", "weather\ng")]),
        ([{**RETURNED, "content": [TWO[0], PICTURE]}], [("tool", f"one\n{UNSEEN_IMAGE}")]),
        ([{**RETURNED, "content": [PDF, PLAIN_FILE]}], [("tool", f"{UNREADABLE_FILE}\nhello")]),
        ([{**RETURNED, "content": [RESULT]}], [("tool", "A page\nhttp://x\none\ntwo")]),
        (
            [RETURNED, PDF, PICTURE],
            [("tool", "one\ntwo"), ("user", f"{UNREADABLE_FILE}\n{UNSEEN_IMAGE}")],
        ),
        ([], [("user", "")]),
    ],
)
def test_blocks_of_a_turn_become_messages(
    blocks: list[Any], expected: list[tuple[str, str]]
) -> None:
    """Claude Code sends pages of a PDF beside the tool's result."""
    converted = chat_messages([{"role": "user", "content": blocks}])
    assert [(message["role"], message["content"]) for message in converted] == expected


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief.", **CACHED}]])
def test_system_prompt_comes_first(system: Any) -> None:
    assert chat_messages([USER], system=system)[0] == {"role": "system", "content": "Be brief."}


def test_leading_system_messages_are_merged() -> None:
    """gpt-oss's template silently drops all but the first."""
    words = [{"role": "system", "content": text} for text in ("Be kind.", "Stop.")]
    converted = chat_messages([words[0], USER, words[1]], system="Be brief.")
    assert [message["role"] for message in converted] == ["system", "user", "system"]
    assert converted[0]["content"] == "Be brief.\n\nBe kind."


@pytest.mark.parametrize("words", [{"content": []}, {"content": None}, {"content": ""}, {}])
def test_directive_turns_without_content_are_dropped(words: dict[str, Any]) -> None:
    """Claude Code sends them in the middle of a conversation, which keeps them from then on."""
    directive = {"role": "system", "output_config": {"effort": "high"}, **words}
    converted = chat_messages([USER, directive, ANSWER, {"role": "user", "content": [RETURNED]}])
    assert [message["role"] for message in converted] == ["user", "assistant", "tool"]


def test_tool_changes_in_a_system_turn_are_accepted() -> None:
    tool = {"type": "tool_reference", "name": "weather"}
    changes = [{"type": kind, "tool": tool} for kind in ("tool_addition", "tool_removal")]
    turn = {"role": "system", "content": [*changes, TWO[0]], "clear_at": "next_user_message"}
    assert chat_messages([USER, turn])[1:] == [{"role": "system", "content": "one"}]


def test_messages_body_is_converted_to_a_chat() -> None:
    chat = body(
        tools=[WEATHER, {"type": "custom", **WEATHER, "name": "g"},
               {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
               {"type": "advisor_20260301", "name": "advisor", "model": "opus"}],
        tool_choice={"type": "tool", "name": "g", "disable_parallel_tool_use": True},
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "low",
                       "format": {"type": "json_schema", "schema": {"type": "integer"}}},
        stop_sequences=["x"],
        max_tokens=7,
        metadata={"user_id": None},
        context_management={"edits": []},
        top_k=5,
        **CACHED,
    ).chat  # fmt: skip
    assert [tool.function.name for tool in chat.tools or ()] == ["weather", "g"]
    assert chat.tool_choice.function.name == "g"  # type: ignore[union-attr]
    assert (chat.parallel_tool_calls, chat.include_reasoning) == (False, False)
    assert chat.chat_template_kwargs == {"enable_thinking": True, "thinking": True}
    assert (chat.reasoning_effort, chat.stop, chat.max_completion_tokens) == ("low", ["x"], 7)
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema_ == {"type": "integer"}
    assert (chat.top_k, chat.add_generation_prompt, chat.continue_final_message) == (5, True, False)


@pytest.mark.parametrize(
    ("choice", "expected"), [("auto", "auto"), ("any", "required"), ("none", "none")]
)
def test_tool_choices_are_converted(choice: str, expected: str) -> None:
    assert body(tools=[WEATHER], tool_choice={"type": choice}).chat.tool_choice == expected


def test_thinking_can_be_disabled() -> None:
    parsed = body(thinking={"type": "disabled"}, chat_template_kwargs={"x": 1, "thinking": True})
    assert parsed.chat.chat_template_kwargs == {"enable_thinking": False, "thinking": True, "x": 1}
    assert body().chat.chat_template_kwargs is None


def test_final_assistant_message_is_continued() -> None:
    chat = body(messages=[USER, {"role": "assistant", "content": "It is"}]).chat
    assert (chat.add_generation_prompt, chat.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": [USER, ANSWER]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [*TWO, PDF]}]}, "messages[0].content[2].type"),
        ({"messages": [{"role": "assistant", "content": [RETURNED]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "system", "content": []}]}, "messages"),
        ({"messages": [{"role": "system", "content": [DEFINED]}]}, "messages[0].content[0].type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
        ({"stop": "x", "stop_sequences": ["y"]}, "stop"),
    ],
)  # fmt: skip
def test_unsupported_and_invalid_fields_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        body(**fields)
    assert caught.value.field == field
    assert isinstance(caught.value, Unsupported) == (field in ("tools[0].type", "mcp_servers"))


def test_thread_request_error_has_anthropics_error_code() -> None:
    """Anthropic's tool runner then manages it itself; any other error makes it raise."""
    with pytest.raises(Unsupported) as caught:
        body(thread={"type": "create"})
    error = problem(caught.value).anthropic_body["error"]
    assert error["details"]["error_code"] == "thread_unsupported_request"
    other_problem = problem(Unsupported("speed", "is not supported", "fast"))
    assert "details" not in other_problem.anthropic_body["error"]


@pytest.mark.parametrize(
    ("inside", "name"),
    [
        ("max_completion_tokens", "max_tokens"), ("messages[3].content", "messages"),
        ("continue_final_message", "messages"), ("stop[1]", "stop_sequences[1]"),
        ("stop_token_ids[0]", "stop_token_ids[0]"),
        ("response_format.json_schema", "output_config.format.json_schema"),
        ("tool_choice.function.name", "tool_choice.name"),
    ],
)  # fmt: skip
def test_errors_use_the_clients_field_names(inside: str, name: str) -> None:
    with pytest.raises(InvalidInput) as caught, own_names():
        raise InvalidInput(inside, "must be another", 1)
    assert caught.value.field == name


def test_output_blocks_are_streamed_in_sequence() -> None:
    """The events add up to the blocks at the end."""
    output = Output(KINDS)
    events: list[Any] = []
    first = CallPart(0, "call_0", "f", '{"a": ')
    rounds: list[list[Part]] = [
        [Reasoning("I ")], [Reasoning("see"), Content("It")], [Content(" is")],
        [first, CallPart(0, "", "", "5}"), CallPart(1, "call_1", "g", "")],
        [CallPart(1, "", "", "{}")],
    ]  # fmt: skip
    for parts in rounds:
        events.extend(output.feed(Parts(parts)))
    events.extend(output.finish(COMPLETED))
    kinds = [block["type"] for block in output.value]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    for index, block in enumerate(output.value):
        begin, *deltas, end = [event for event in events if event["index"] == index]
        assert (begin["type"], end["type"]) == ("content_block_start", "content_block_stop")
        assert begin["content_block"]["type"] == block["type"]
        pieces = [[text for name, text in e["delta"].items() if name != "type"] for e in deltas]
        text = "".join(piece for (piece,) in pieces)
        expected = {"thinking": block.get("thinking"), "text": block.get("text")}.get(block["type"])
        assert text == expected or json.loads(text) == block["input"]
    assert [block.get("input") for block in output.value[2:]] == [{"a": 5}, {}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1, 2', {"a": [1, 2]}), ('{"a": "x', {}), ("", {}), ("[1]", {}), ("nonsense", {}),
        ('{"a": NaN}', {}), ('{"a": [1e999]}', {}),
    ],
)  # fmt: skip
def test_truncated_call_has_partial_input(arguments: str, expected: Any) -> None:
    """The input as far as it goes, as Anthropic's client parses partial JSON.

    What JSON cannot write, which would spoil the whole answer, is no input.
    """
    output = Output(KINDS)
    list(output.feed(Parts([CallPart(0, "c", "f", arguments)])))
    list(output.finish(COMPLETED))
    assert output.value[0]["input"] == expected


def test_empty_answer_has_no_blocks() -> None:
    output = Output(KINDS)
    assert list(output.finish(COMPLETED)) == [] and output.value == []


class FailingGeneration:
    """A generation that fails after its first piece."""

    answer_id, created, model = "chatcmpl-1", 5, "m"
    form = ChatFormat(PLAIN)

    async def steps(self) -> AsyncGenerator[Step, None]:
        yield Step(0, Piece(token_ids=(1,), sources=(), decode_texts=lambda: ("Hello",)), None)
        raise Overloaded("too many requests", retry_after_s=1)

    def usage(self) -> dict[str, Any]:
        cached = {"cached_tokens": 4}
        return {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": cached}


async def test_failing_stream_ends_with_an_error_event() -> None:
    answer = MessageAnswer(FailingGeneration())  # type: ignore[arg-type]
    received = b""
    with pytest.raises(Overloaded) as caught:
        async for data in answer.events():
            received += data
    received += answer.error_event(caught.value)
    lines = [line for line in received.decode().splitlines() if line.startswith("data: ")]
    start, *_, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert start["message"]["usage"]["input_tokens"] == 5
    assert start["message"]["usage"]["cache_read_input_tokens"] == 4
    assert (last["type"], last["error"]["type"]) == ("error", "rate_limit_error")
    assert b"event: error\n" in received and "too many requests" in last["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"messages": "x"}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [USER], "what": 1}, 400, "invalid_request_error"),
        ({"messages": [USER], "model": "another"}, 404, "not_found_error"),
        ("nonsense", 400, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_errors_have_anthropics_shape(body: Any, status: int, kind: str, path: str) -> None:
    async with gateway() as (client, _):
        answer = await client.post(path, json=body)
    assert answer.status_code == status
    error = answer.json()
    assert (set(error), set(error["error"])) == ({"type", "error"}, {"type", "message"})
    assert (error["type"], error["error"]["type"]) == ("error", kind)


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/tokenize"]
)
async def test_openapi_document_describes_the_error_shape(path: str) -> None:
    async with gateway() as (client, _):
        document = (await client.get("/openapi.json")).json()
        refused = await client.post(path, json={"messages": "x"})
    media_type = document["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]
    shape = document["components"]["schemas"][media_type["schema"]["$ref"].rpartition("/")[2]]
    assert set(refused.json()) == set(shape["properties"])


async def test_unknown_route_and_method_errors() -> None:
    async with gateway() as (client, _):
        missing = await client.post("/v1/messages/batches")
        with_get = await client.get("/v1/messages")
        unknown_route = await client.get("/v1/messagesx")
    assert (missing.status_code, missing.json()["type"]) == (404, "error")
    assert (with_get.status_code, with_get.json()["error"]["type"]) == (
        405,
        "invalid_request_error",
    )
    assert unknown_route.json()["error"]["code"] == "unknown_url"


async def test_api_key_is_accepted_in_either_header(tmp_path: Path) -> None:
    key = new_key()
    (tmp_path / "keys.toml").write_text(KeyEntry(name="a", sha256=hash_of(key), tenant="").toml())
    body = {"messages": [USER]}
    async with gateway(tmp_path / "keys.toml") as (client, _):
        for headers, status in [
            ({"x-api-key": key}, 200), ({"authorization": f"Bearer {key}"}, 200),
            ({"x-api-key": "another"}, 401), ({}, 401),
        ]:  # fmt: skip
            path = "/v1/messages/count_tokens"
            answer = await client.post(path, json=body, headers=headers)
            assert answer.status_code == status
            if status == 401:
                assert answer.json()["error"]["type"] == "authentication_error"
