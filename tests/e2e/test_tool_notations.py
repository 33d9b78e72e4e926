"""Required tool calls in notations that are not JSON, by OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from orchestrator.launcher import Stack
from tests.e2e.http_client import complete_chat
from tests.support import chat_templates
from tests.support.own_orchestrator import own_orchestrator

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "old": {"type": "boolean"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
SEEDS = range(3)
PLAIN = {"speculative": {"strategy": "autoregressive"}}


@pytest.fixture(
    scope="module",
    params=[
        "QWEN3_CODER",
        "LLAMA_PYTHONIC",
        "MISTRAL_WITH_IDS",
        "GPT_OSS",
        "DEEPSEEK_V3",
        "KIMI_K2",
        "GLM45",
        "MINIMAX_M2",
    ],  # fmt: skip
)
def caller(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[OpenAI]:
    """OpenAI's client of an orchestrator with one of the templates, on the stack's services."""
    template = getattr(chat_templates, request.param)
    # The bundled model has never seen the mark that ends reasoning and would not stop.
    flags = ("--reasoning-parser", "none")
    with own_orchestrator(stack, tmp_path_factory.mktemp("caller"), template, *flags) as client:
        yield client


def streamed(chunks: Any) -> tuple[str, str, str]:
    """Name, arguments and finish reason, assembled as clients do."""
    name, arguments, reason = "", "", ""
    for chunk in chunks:
        (choice,) = chunk.choices
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            name += call.function.name or ""
            arguments += call.function.arguments
    return name, arguments, reason


def test_required_tool_call(caller: OpenAI) -> None:
    """Whole and streamed, with drafts and without: the same call, valid by the schema."""
    for seed in SEEDS:
        fields: dict[str, Any] = {
            "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False,
            "seed": seed, "max_tokens": 300,
        }  # fmt: skip
        (answer,) = complete_chat(caller, **fields).choices
        assert answer.finish_reason == "tool_calls" and answer.message.content is None
        (call,) = answer.message.tool_calls
        assert call.function.name == "add"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        expected = ("add", call.function.arguments, "tool_calls")
        assert streamed(complete_chat(caller, **fields, stream=True)) == expected
        (plain,) = complete_chat(caller, **fields, extra_body=PLAIN).choices
        assert plain.message.tool_calls[0].function == call.function
        turns = [
            {"role": "user", "content": "x"},
            answer.message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "added"},
        ]
        after = complete_chat(caller, messages=turns, tools=TOOLS, max_tokens=4, seed=seed)
        assert 0 < after.usage.completion_tokens <= 4
