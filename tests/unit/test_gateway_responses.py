"""The Responses API: input items, output items, and streams that fail."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from draftloop.errors import InvalidInput, Unavailable
from orchestrator.figures import Piece
from orchestrator.gateway.chat_reader import PLAIN
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.messages import UNREADABLE_FILE, UNSEEN_IMAGE
from orchestrator.gateway.output import COMPLETED, Output
from orchestrator.gateway.parts import CallPart, Content, Part, Parts, Reasoning
from orchestrator.gateway.responses.answer import ResponseAnswer
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.responses.items import messages
from orchestrator.gateway.responses.names import own_names
from orchestrator.gateway.responses.output import kinds
from orchestrator.gateway.responses.tools import namespaced_names
from orchestrator.gateway.runs import Step

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [],
           "content": [{"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
TEXT = {"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}
ASSISTANT = {
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "id": "1",
    "content": [TEXT],
}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": None}
RETURNED = {"type": "function_call_output", "call_id": "c1", "output": "5"}
USER = {"role": "user", "content": "x"}


def body(**fields: Any) -> ResponseBody:
    return ResponseBody.model_validate({"input": "x", **fields})


def roles(items: list[Any]) -> list[str]:
    return [message["role"] for message in messages(None, body(input=items).input)]


def test_items_of_one_answer_become_one_message() -> None:
    converted = messages(
        "Be brief.", body(input=[USER, THOUGHT, ASSISTANT, CALL, CALL, RETURNED]).input
    )
    assert [message["role"] for message in converted] == ["system", "user", "assistant", "tool"]
    answer = converted[2]
    assert (answer["reasoning"], answer["content"]) == ("hm", "yes")
    assert [call["id"] for call in answer["tool_calls"]] == ["c1", "c1"]
    assert converted[3] == {"role": "tool", "tool_call_id": "c1", "content": "5"}


def test_leading_system_messages_are_merged() -> None:
    """Codex sends instructions and a developer message; some templates allow one system turn only.

    gpt-oss's template would drop the second, and Gemma 3's would refuse it. Later system messages
    stay where they are.
    """
    developer = {"type": "message", "role": "developer", "content": "Read only."}
    items = body(input=[developer, {**developer, "role": "system"}, USER, developer]).input
    assert messages("Be brief.", items) == [
        {"role": "system", "content": "Be brief.\n\nRead only.\n\nRead only."}, USER,
        {"role": "developer", "content": "Read only."},
    ]  # fmt: skip
    assert roles([ASSISTANT, developer, developer]) == ["assistant", "developer", "developer"]


def test_image_in_a_tool_result_becomes_a_placeholder() -> None:
    """A refusal would end the conversation, which contains it from then on; a user's is refused."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64,", "detail": "high"}
    items = body(input=[USER, CALL, {**RETURNED, "output": [picture]}]).input
    assert messages(None, items)[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": UNSEEN_IMAGE,
    }
    with pytest.raises(ValueError, match="input_image"):
        body(input=[{"role": "user", "content": [picture]}])


def test_file_in_a_tool_result_becomes_a_placeholder() -> None:
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,"}
    text = {"type": "input_text", "text": "read"}
    items = body(input=[USER, CALL, {**RETURNED, "output": [text, file]}]).input
    assert messages(None, items)[-1]["content"] == f"read\n{UNREADABLE_FILE}"
    with pytest.raises(ValueError, match="input_file"):
        body(input=[{"role": "user", "content": [file]}])


def test_agent_messages_become_user_messages() -> None:
    """Codex's helper agents get their task in an "encrypted" part, the model's plain text."""
    parts = [
        {"type": "input_text", "text": "Sender: main"},
        {"type": "encrypted_content", "encrypted_content": "Count the files."},
    ]
    item: Any = {"type": "agent_message", "id": "amsg_0", "author": "main", "content": parts}
    chat = body(input=[USER, {**item, "recipient": "child"}]).chat
    assert [message.role for message in chat.messages] == ["user", "user"]
    assert chat.messages[-1].content == "Sender: main\nCount the files."
    assert body(input=[{**item, "content": "Done."}]).chat.messages[0].content == "Done."


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([ASSISTANT, ASSISTANT], ["assistant", "assistant"]),
        ([CALL, ASSISTANT], ["assistant", "assistant"]),
        ([ASSISTANT, THOUGHT, CALL], ["assistant", "assistant"]),
        ([CALL, RETURNED, THOUGHT, CALL, RETURNED], ["assistant", "tool", "assistant", "tool"]),
        ([{"type": "reasoning", "summary": []}, USER], ["user"]),
        ([THOUGHT, THOUGHT], ["assistant", "assistant"]),
    ],
)
def test_items_are_grouped_into_messages(items: list[Any], expected: list[str]) -> None:
    assert roles(items) == expected


def test_response_body_is_converted_to_a_chat() -> None:
    chat = body(
        tools=[{"type": "function", "name": "f", "strict": True}, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "f"},
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "text"}},
        top_logprobs=3,
        top_k=5,
        stop=["x"],
        store=True,
        metadata={"a": "b"},
    ).chat
    assert chat.tools is not None and [tool.function.name for tool in chat.tools] == ["f"]
    assert chat.tool_choice.function.name == "f"  # type: ignore[union-attr]
    assert (chat.reasoning_effort, chat.logprobs, chat.top_logprobs) == ("low", True, 3)
    assert (chat.top_k, chat.stop, chat.max_completion_tokens) == (5, ["x"], None)
    assert chat.response_format is not None and chat.response_format.type == "text"


@pytest.mark.parametrize("options", [
    {"truncation": "auto"}, {"stream": True, "stream_options": {"include_usage": True}},
])  # fmt: skip
def test_options_that_always_hold_are_accepted(options: dict[str, Any]) -> None:
    """Usage comes with the last event; too long input is refused rather than truncated."""
    assert body(**options).chat.messages == body().chat.messages


NAMESPACE = {"type": "namespace", "name": "mcp__weather", "description": "Tools of it.", "tools": [
    {"type": "function", "name": "forecast", "description": "Of a city.", "defer_loading": True,
     "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "freely"},
]}  # fmt: skip
FULL_NAMES = ["mcp__weather__forecast", "mcp__weather__freely"]
PLAIN_TOOL = {"type": "function", "name": "f"}
CALLED = {**CALL, "name": "forecast", "namespace": "mcp__weather"}


def test_namespaced_functions_are_functions_of_the_chat() -> None:
    """Codex sends MCP servers' tools this way, and recognises calls by both names."""
    parsed = body(tools=[PLAIN_TOOL, NAMESPACE, {"type": "web_search"}], input=[USER, CALLED])
    functions = [tool.function for tool in parsed.chat.tools or ()]
    assert [function.name for function in functions] == ["f", *FULL_NAMES]
    assert functions[1].description == "Of a city."
    calls = parsed.chat.messages[-1].tool_calls or []
    assert [call.function.name for call in calls] == ["mcp__weather__forecast"]
    output = Output(kinds(namespaced_names(parsed.tools or ())))
    for name in ("f", "mcp__weather__forecast"):
        list(output.feed(Parts([CallPart(0, "c", name, "{}")])))
    called_names = [(item["name"], item.get("namespace")) for item in output.value]
    assert called_names == [("f", None), ("forecast", "mcp__weather")]


def test_duplicate_full_function_names_are_refused() -> None:
    with pytest.raises(InvalidInput, match="^tools: .*mcp__weather__forecast twice"):
        body(tools=[NAMESPACE, {**PLAIN_TOOL, "name": "mcp__weather__forecast"}])


def test_tools_may_be_sent_as_an_input_item() -> None:
    """Newer versions of Codex send no others, and omit what only OpenAI's servers run."""
    tools_item = {"type": "additional_tools", "role": "developer", "tools": [
        {**PLAIN_TOOL, "description": "Now."}, NAMESPACE, {"type": "web_search"}]}  # fmt: skip
    parsed = body(input=[tools_item, USER], tool_choice="required")
    assert [tool.function.name for tool in parsed.chat.tools or ()] == ["f", *FULL_NAMES]
    assert [message.role for message in parsed.chat.messages] == ["user"]
    both = body(input=[tools_item, USER], tools=[PLAIN_TOOL, {**PLAIN_TOOL, "name": "g"}])
    offered = [(tool.function.name, tool.function.description) for tool in both.chat.tools or ()]
    assert offered[:2] == [("g", None), ("f", "Now.")]
    with pytest.raises(ValueError, match="additional_tools.tools.0.*name"):
        body(input=[{**tools_item, "tools": [{"type": "function"}]}, USER])


def test_additional_codex_fields_are_ignored() -> None:
    """Fields about itself, its items and summaries, in every request."""
    metadata = {"internal_chat_message_metadata_passthrough": {"turn_id": "1"}}
    text = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [text], **metadata},
        {**THOUGHT, "encrypted_content": None, **metadata}, {**CALL, "namespace": None, **metadata},
        {**RETURNED, **metadata},
    ]  # fmt: skip
    parsed = body(
        input=items, store=False, stream=True, include=["reasoning.encrypted_content"],
        stream_options={"reasoning_summary_delivery": "sequential_cutoff"},
        client_metadata={"x-codex-installation-id": "1"}, prompt_cache_key="1",
        tools=[{"type": "function", "name": "f", "strict": False, "output_schema": None}],
        reasoning={"effort": "low", "summary": "auto", "context": None},
    )  # fmt: skip
    assert [message.role for message in parsed.chat.messages] == ["system", "assistant", "tool"]


def test_additional_fields_of_newer_openai_clients_are_ignored() -> None:
    """Fields for permitted and actual callers, the form of results, and access programs."""
    direct: Any = {"caller": {"type": "direct"}}
    tool: Any = {
        "type": "function", "name": "f", "allowed_callers": ["direct"],
        "output_schema": {"type": "object"},
    }  # fmt: skip
    parsed = body(
        input=[USER, {**CALL, **direct}, {**RETURNED, **direct, "name": "f", "namespace": "n"}],
        tools=[tool], access_programs={"cyber": "standard"}, reasoning={"context": "all_turns"},
    )  # fmt: skip
    assert [message.role for message in parsed.chat.messages] == ["user", "assistant", "tool"]
    (chat_tool,) = parsed.chat.tools or []
    assert chat_tool.function.model_dump(exclude_none=True) == {"name": "f"}


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("max_completion_tokens", "max_output_tokens"), ("messages[3].content", "input"),
        ("response_format.json_schema", "text.format.json_schema"),
        ("tool_choice.function.name", "tool_choice.name"), ("temperature", "temperature"),
    ],
)  # fmt: skip
def test_errors_use_the_clients_field_names(inside: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught, own_names():
        raise InvalidInput(inside, "must be another", 1)
    assert caught.value.field == expected


def test_output_items_are_streamed_in_sequence() -> None:
    """The events add up to the items at the end."""
    output = Output(kinds({}))
    events: list[Any] = []
    first = CallPart(0, "call_0", "f", "{")
    rounds: list[list[Part]] = [
        [Reasoning("I ")], [Reasoning("see"), Content("It")], [Content(" is")],
        [first, CallPart(0, "", "", "}"), CallPart(1, "call_1", "g", "")],
        [CallPart(1, "", "", "{}")],
    ]  # fmt: skip
    for parts in rounds:
        events.extend(output.feed(Parts(parts)))
    events.extend(output.finish(COMPLETED))
    types = [item["type"] for item in output.value]
    assert types == ["reasoning", "message", "function_call", "function_call"]
    assert {item["status"] for item in output.value} == {"completed"}
    for index, item in enumerate(output.value):
        updates = [event for event in events if event["output_index"] == index]
        assert updates[0]["type"] == "response.output_item.added"
        assert updates[0]["item"]["status"] == "in_progress"
        assert (updates[-1]["type"], updates[-1]["item"]) == ("response.output_item.done", item)
        text = "".join(event.get("delta", "") for event in updates)
        whole = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert text == whole
    assert [item.get("arguments") for item in output.value[2:]] == ["{}", "{}"]


def test_empty_answer_is_an_empty_message() -> None:
    output = Output(kinds({}))
    list(output.finish_with_content(COMPLETED))
    (item,) = output.value
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


class FailingGeneration:
    """A generation that fails after its first piece."""

    answer_id, created, model = "chatcmpl-1", 5, "m"
    form = ChatFormat(PLAIN)

    class _Generation:
        class request:
            class sampling:
                temperature = top_p = 1.0

    generations = (_Generation,)

    async def steps(self) -> AsyncGenerator[Step, None]:
        yield Step(0, Piece(token_ids=(1,), sources=(), decode_texts=lambda: ("Hello",)), None)
        raise Unavailable("the verifier has gone")

    def format_logprobs(self, *_args: Any) -> None:
        return None


def test_stream_that_fails_before_its_first_token_begins_with_response_created() -> None:
    answer = ResponseAnswer(FailingGeneration(), body())  # type: ignore[arg-type]
    told = answer.error_event(Unavailable("no verifier")).decode()
    lines = [line for line in told.splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert [event["response"]["status"] for event in events[1:]] == ["in_progress", "failed"]


async def test_failing_stream_ends_with_response_failed() -> None:
    answer = ResponseAnswer(FailingGeneration(), body())  # type: ignore[arg-type]
    received = b""
    with pytest.raises(Unavailable) as caught:
        async for data in answer.events():
            received += data
    received += answer.error_event(caught.value)
    lines = [line for line in received.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    last = events[-1]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "the verifier has gone" in last["response"]["error"]["message"]
    (item,) = last["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Hello")
