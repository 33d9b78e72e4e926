"""Chat templates of models that call tools: recognised, and given earlier calls as they want."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.reasoning import marks
from orchestrator.gateway.tools.llama3_json import LLAMA3_JSON
from orchestrator.gateway.tools.mistral import MISTRAL
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.notations import detected
from orchestrator.gateway.tools.offer import shown_tools
from orchestrator.gateway.tools.pythonic import PYTHONIC
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.schemas import Function, Tool
from tests.support import chat_templates
from tests.support.calls import read
from tests.support.marks import message

ARGUMENTS = {"city": 'Be"rn', "days": 2, "more": {"a": [True]}}
WEATHER = Function(
    name="weather",
    parameters={
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "more": {"type": "object"},
        }
    },
)
TEMPLATES = [
    (chat_templates.QWEN3_CODER, QWEN3_CODER),
    (chat_templates.LLAMA_PYTHONIC, PYTHONIC),
    (chat_templates.LLAMA_JSON, LLAMA3_JSON),
    (chat_templates.MISTRAL_WITH_IDS, MISTRAL),
    (chat_templates.MAGISTRAL, MISTRAL),
    (chat_templates.MISTRAL_LIST, MISTRAL),
]  # fmt: skip


def template_of(folder: Path, text: str) -> ChatTemplate:
    file = folder / "template.jinja"
    file.write_text(text)
    return ChatTemplate(bundled_model("verifier"), file)


def called(arguments: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": "a1b2c3d4e", "type": "function", "function": function}


@pytest.mark.parametrize(("text", "notation"), TEMPLATES)
def test_a_template_writes_calls_as_its_notation_reads_them(
    tmp_path: Path, text: str, notation: Notation
) -> None:
    assert detected(text) is notation
    template = template_of(tmp_path, text)
    turns = [
        message(role="user", content="How is it?"),
        message(content=None, tool_calls=[called(json.dumps(ARGUMENTS))]),
        message(role="tool", content="fine", tool_call_id="a1b2c3d4e"),
    ]
    tools = shown_tools([Tool(type="function", function=WEATHER)], "auto")
    before = template.render(for_template(turns[:1]), tools=tools)
    whole = template.render(for_template(turns), tools=tools, add_generation_prompt=False)
    assert whole.startswith(before) and "weather" in before and "fine" in whole
    written = whole[len(before) :].strip()
    functions = {"weather": WEATHER}
    _, ((name, arguments),) = read(notation, [written], functions)
    assert name == "weather" and json.loads(arguments) == ARGUMENTS


def test_arguments_that_were_cut_cannot_be_written_between_tags(tmp_path: Path) -> None:
    turns = [message(role="user", content="x"), message(tool_calls=[called('{"city": "Be')])]
    with pytest.raises(InvalidInput) as caught:
        template_of(tmp_path, chat_templates.QWEN3_CODER).render(for_template(turns))
    assert caught.value.field == "messages"
    assert '{"city": "Be' in template_of(tmp_path, chat_templates.MAGISTRAL).render(
        for_template(turns)
    )


def test_magistral_reasons_between_its_own_marks() -> None:
    assert marks.detected(chat_templates.MAGISTRAL) is marks.MISTRAL
