"""Custom tools of the Responses API, which take text: offered, called, streamed, sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateway.output import COMPLETED, INCOMPLETE, Output
from orchestrator.gateway.parts import CallPart, Parts
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.responses.custom_input import ARGUMENTS, InputReader
from orchestrator.gateway.responses.output import kinds
from orchestrator.gateway.responses.tools import custom_tool_names, namespaced_names

USER = {"role": "user", "content": "x"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
INSIDE = {"type": "namespace", "name": "files", "description": "", "tools": [PATCH]}
NESTED = "files__apply_patch"


def body(**fields: Any) -> ResponseBody:
    return ResponseBody.model_validate({"input": [USER], **fields})


def grammar(syntax: str, definition: str) -> dict[str, str]:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


@pytest.mark.parametrize(
    ("fields", "description"),
    [
        ({}, "Edits files."),
        ({"format": {"type": "text"}}, "Edits files."),
        ({"format": grammar("lark", 'start: "a"')},
         "Edits files.\n\n`input` must fit this grammar in Lark's notation:\nstart: \"a\""),
        ({"format": grammar("regex", "a+"), "description": None},
         "`input` must fit this regular expression:\na+"),
        ({"defer_loading": True, "allowed_callers": ["direct"]}, "Edits files."),
    ],
)  # fmt: skip
def test_custom_tool_is_offered_as_a_function_of_one_text(
    fields: dict[str, Any], description: str
) -> None:
    """Codex offers `apply_patch` this way; models never call a tool that they are not shown."""
    offered = body(
        tools=[{**PATCH, **fields}], tool_choice={"type": "custom", "name": "apply_patch"}
    )  # fmt: skip
    (tool,) = offered.chat.tools or []
    assert (tool.function.name, tool.function.description) == ("apply_patch", description)
    assert tool.function.parameters == ARGUMENTS
    assert offered.chat.tool_choice.function.name == "apply_patch"  # type: ignore[union-attr]


def test_custom_tool_calls_in_the_history_are_calls_with_results() -> None:
    """A history with calls by another model used to be refused with 400 for good."""
    direct = {"caller": {"type": "direct"}, "id": "1", "status": "completed"}
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": 'a "b"\n'}
    picture = {"type": "input_image", "image_url": "data:image/png;base64,"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [picture]}
    items: list[Any] = [
        USER, {**call, **direct}, {**output, **direct}, {**call, "namespace": "files"},
        {**output, "output": "done"},
    ]  # fmt: skip
    messages = body(input=items).chat.messages
    assert [turn.role for turn in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    functions = [call.function for turn in messages for call in turn.tool_calls or ()]
    assert [function.name for function in functions] == ["apply_patch", NESTED]
    assert json.loads(functions[0].arguments) == {"input": 'a "b"\n'}
    assert (messages[2].tool_call_id, messages[4].content) == ("c1", "done")


def streamed_call(name: str, pieces: list[str], status: str = COMPLETED) -> tuple[Any, list[Any]]:
    """The item of such a call, and its events."""
    tools = body(tools=[PATCH, INSIDE]).offered
    output = Output(kinds(namespaced_names(tools), custom_tool_names(tools)))
    parts = [CallPart(0, "c1", name, ""), *(CallPart(0, "", "", piece) for piece in pieces)]
    events = [event for part in parts for event in output.feed(Parts([part]))]
    events.extend(output.finish(status))
    (item,) = output.value
    return item, events


def test_custom_tool_calls_are_streamed_like_openais() -> None:
    """Events have the order that OpenAI's client expects, and the text is unescaped."""
    item, events = streamed_call(NESTED, ['{"inp', 'ut": "*** Be', "gin\\", 'n\\"a\\"', '"', "}"])
    text = '*** Begin\n"a"'
    fields = {key: value for key, value in item.items() if key != "id"}
    assert fields == {
        "type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "namespace": "files",
        "input": text, "status": "completed",
    }  # fmt: skip
    first, *deltas, done, last = events
    assert (first["type"], first["item"]["input"]) == ("response.output_item.added", "")
    assert {event["type"] for event in deltas} == {"response.custom_tool_call_input.delta"}
    assert [event["delta"] for event in deltas] == ["*** Be", "gin", '\n"a"']
    assert (done["type"], done["input"]) == ("response.custom_tool_call_input.done", text)
    assert (last["type"], last["item"]) == ("response.output_item.done", item)
    assert {event["item_id"] for event in [*deltas, done]} == {item["id"]}


def test_plain_functions_are_called_as_before() -> None:
    item, _ = streamed_call("f", ['{"input": "a"}'])
    assert (item["type"], item["arguments"]) == ("function_call", '{"input": "a"}')


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\nb"}', "a\nb"),  # models forget escapes
        (r'{"input": "\d+ \u12"}', r"\d+ \u12"),
        (r'{"input": "\\n\/"}', r"\n/"),
        (r'{"input": "\ud83d\ude00 \ud83d \ude00."}', "\U0001f600 \ufffd \ufffd."),
        ('{"input": "a", "more": 1}', "a"),
        ('{"more": 1, "input": "a"}', "a"),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("{}", ""),
        ("", ""),
        ("no object", "no object"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_text_argument_is_unescaped_in_any_pieces(arguments: str, text: str, size: int) -> None:
    """However the text is divided into pieces."""
    item, _ = streamed_call(
        "apply_patch", [arguments[at : at + size] for at in range(0, len(arguments), size)]
    )
    assert item["input"] == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a b', "a b"), ('{"input": "a\\', "a"), (r'{"input": "a\ud8', "a"), ('{"in', "")],
)
def test_truncated_text_argument_is_incomplete(arguments: str, text: str) -> None:
    item, events = streamed_call("apply_patch", [arguments], INCOMPLETE)
    assert (item["input"], item["status"]) == (text, "incomplete")
    assert events[-2]["input"] == text


@given(text=st.text(), escaped=st.booleans(), size=st.integers(1, 9))
def test_input_reader_round_trips_any_text(text: str, escaped: bool, size: int) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=escaped)
    reader = InputReader()
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    assert "".join([*map(reader.feed, pieces), reader.rest()]) == text
