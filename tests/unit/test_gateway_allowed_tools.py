"""`tool_choice` of type `allowed_tools`: only some of the tools are offered."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from draftloop.errors import InvalidInput
from orchestrator.gateway.errors import body_problem, problem
from orchestrator.gateway.responses.body import ResponseBody
from orchestrator.gateway.schemas import ChatBody
from tests.support.gateway import gateway

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("red", "green", "blue")]
FLAT = [{"type": "function", "name": name} for name in ("red", "green", "blue")]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """The choice in the form of the chat API."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def allowed_flat(mode: str, *names: str) -> dict[str, Any]:
    """The choice in the form of the Responses API."""
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def chat(choice: Any, tools: Any = TOOLS) -> ChatBody:
    return ChatBody.model_validate({"messages": HELLO, "tools": tools, "tool_choice": choice})


def response(choice: Any, tools: Any = FLAT) -> ResponseBody:
    return ResponseBody.model_validate({"input": "x", "tools": tools, "tool_choice": choice})


def offered_names(body: ChatBody) -> list[str]:
    return [tool.function.name for tool in body.offered]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_offered(mode: str) -> None:
    body = chat(allowed(mode, "blue", "red"))
    assert (offered_names(body), body.choice, body.can_call_tools) == (["red", "blue"], mode, True)
    parsed = response(allowed_flat(mode, "blue", "red"))
    assert (offered_names(parsed.chat), parsed.chat.choice) == (["red", "blue"], mode)


def test_other_tool_choices_offer_all_tools() -> None:
    assert offered_names(chat(None)) == offered_names(chat("required")) == ["red", "green", "blue"]
    assert chat(None).choice == "auto" and not chat("none").can_call_tools
    assert chat(TOOLS[1]).choice == chat(TOOLS[1]).tool_choice


def test_hosted_openai_tools_are_not_offered() -> None:
    several = allowed_flat("auto", "green")
    several["tools"] += [{"type": "mcp", "server_label": "x"}, {"type": "image_generation"}]
    assert offered_names(response(several).chat) == ["green"]


def test_custom_and_namespaced_tools_may_be_allowed() -> None:
    now = {"type": "function", "name": "now"}
    patch = {"type": "custom", "name": "patch"}
    tools = [*FLAT, patch, {"type": "namespace", "name": "mcp", "tools": [now]}]
    several = allowed_flat("auto")
    several["tools"] = [patch, {**now, "namespace": "mcp"}]
    assert offered_names(response(several, tools).chat) == ["patch", "mcp__now"]


@pytest.mark.parametrize(("choice", "tools", "param"), [
    (allowed("auto", "pink"), TOOLS, "tool_choice.allowed_tools.tools[0]"),
    (allowed("auto", "red"), None, "tool_choice"),
    (allowed("auto"), TOOLS, "tool_choice.allowed_tools.tools"),
    (allowed("none", "red"), TOOLS, "tool_choice.allowed_tools.mode"),
    ({"type": "allowed_tools"}, TOOLS, "tool_choice.allowed_tools"),
    ({"type": "function"}, TOOLS, "tool_choice.function"),
    ({"type": "any"}, TOOLS, "tool_choice.type"),
    ("any", TOOLS, "tool_choice"),
])  # fmt: skip
def test_invalid_tool_choice_names_its_field(choice: Any, tools: Any, param: str) -> None:
    with pytest.raises((InvalidInput, ValidationError)) as caught:
        chat(choice, tools)
    assert reported_param(caught.value) == param


@pytest.mark.parametrize(("choice", "param"), [
    (allowed_flat("auto", "red", "pink"), "tool_choice.tools[1]"),
    (allowed_flat("auto"), "tool_choice.tools"),
    (allowed_flat("none", "red"), "tool_choice.mode"),
])  # fmt: skip
def test_invalid_tool_choice_of_responses_names_its_field(choice: Any, param: str) -> None:
    with pytest.raises((InvalidInput, ValidationError)) as caught:
        response(choice)
    assert reported_param(caught.value) == param


def reported_param(error: Exception) -> str | None:
    """The parameter that the error reported to the client names."""
    if isinstance(error, ValidationError):
        return body_problem([{**it, "loc": ("body", *it["loc"])} for it in error.errors()]).param
    return problem(error).param


async def test_prompt_lists_only_the_allowed_tools() -> None:
    """The Responses API's count of input tokens agrees."""
    async with gateway() as (client, _):

        async def count_tokens(**fields: Any) -> int:
            body = {"input": "x", **fields}
            answer = await client.post("/v1/responses/input_tokens", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["object"] == "response.input_tokens"
            return int(answer.json()["input_tokens"])

        one_tool = await count_tokens(tools=FLAT[:1])
        assert await count_tokens() < one_tool < await count_tokens(tools=FLAT)
        assert one_tool == await count_tokens(tools=FLAT, tool_choice=allowed_flat("auto", "red"))
