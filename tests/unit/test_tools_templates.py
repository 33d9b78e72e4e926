"""Chat templates of models that call tools: recognised, and given earlier calls in their form."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from orchestrator.config import OrchestratorSettings
from orchestrator.gateway.chat_reader import Reading
from orchestrator.gateway.chat_template import ChatTemplate
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.readings import Readings
from orchestrator.gateway.reasoning import marks
from orchestrator.gateway.reasoning.channel_thought import ChannelThought
from orchestrator.gateway.schemas import ChatBody
from orchestrator.gateway.tools.deepseek import DEEPSEEK
from orchestrator.gateway.tools.glm45 import GLM45
from orchestrator.gateway.tools.harmony import HARMONY
from orchestrator.gateway.tools.hermes import HERMES
from orchestrator.gateway.tools.kimi_k2 import KIMI_K2
from orchestrator.gateway.tools.llama3_json import LLAMA3_JSON
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
from orchestrator.gateway.tools.mistral import MISTRAL
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.notations import NOTATIONS, detect_notation
from orchestrator.gateway.tools.offer import Offer, shown_tools
from orchestrator.gateway.tools.pythonic import PYTHONIC
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.schemas import Function, Tool
from orchestrator.parser_names import PARSER_ALIASES
from orchestrator.tokenizer import Tokenizer
from tests.support import chat_templates
from tests.support.calls import read_calls
from tests.support.marks import chat_message

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
OFFER = Offer(HARMONY, {"weather": WEATHER}, None, frozenset())
TEMPLATES = [
    (chat_templates.QWEN3_CODER, QWEN3_CODER),
    (chat_templates.LLAMA_PYTHONIC, PYTHONIC),
    (chat_templates.LLAMA_JSON, LLAMA3_JSON),
    (chat_templates.MISTRAL_WITH_IDS, MISTRAL),
    (chat_templates.MAGISTRAL, MISTRAL),
    (chat_templates.MISTRAL_LIST, MISTRAL),
    (chat_templates.DEEPSEEK_V3, DEEPSEEK),
    (chat_templates.DEEPSEEK_V31, DEEPSEEK),
    (chat_templates.KIMI_K2, KIMI_K2),
    (chat_templates.GLM45, GLM45),
    (chat_templates.MINIMAX_M2, MINIMAX_M2),
]  # fmt: skip


def template_of(folder: Path, text: str) -> ChatTemplate:
    file = folder / "template.jinja"
    file.write_text(text)
    return ChatTemplate(bundled_model("verifier"), file)


def call_of(arguments: str, call_id: str = "a1b2c3d4e") -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


@pytest.mark.parametrize(("text", "notation"), TEMPLATES)
def test_calls_rendered_by_a_template_are_read_by_its_notation(
    tmp_path: Path, text: str, notation: Notation
) -> None:
    assert detect_notation(text) is notation
    template = template_of(tmp_path, text)
    call_id = "functions.weather:0" if notation is KIMI_K2 else "a1b2c3d4e"
    turns = [
        chat_message(role="user", content="How is it?"),
        chat_message(content=None, tool_calls=[call_of(json.dumps(ARGUMENTS), call_id)]),
        chat_message(role="tool", content="fine", tool_call_id=call_id),
    ]
    tools = shown_tools([Tool(type="function", function=WEATHER)], "auto")
    before = template.render(for_template(turns[:1]), tools=tools)
    whole = template.render(for_template(turns), tools=tools, add_generation_prompt=False)
    assert whole.startswith(before) and "weather" in before and "fine" in whole
    written = whole[len(before) :].strip()
    functions = {"weather": WEATHER}
    _, ((name, arguments),) = read_calls(notation, [written], functions)
    assert name == "weather" and json.loads(arguments) == ARGUMENTS


def test_truncated_arguments_are_refused_by_tag_templates(tmp_path: Path) -> None:
    # Such a template needs arguments that are valid JSON; one that copies their text takes any.
    turns = [
        chat_message(role="user", content="x"),
        chat_message(tool_calls=[call_of('{"city": "Be')]),
    ]
    with pytest.raises(InvalidInput) as caught:
        template_of(tmp_path, chat_templates.QWEN3_CODER).render(for_template(turns))
    assert caught.value.field == "messages"
    assert '{"city": "Be' in template_of(tmp_path, chat_templates.MAGISTRAL).render(
        for_template(turns)
    )


def test_gpt_oss_template_receives_calls_and_reasoning_in_channels(tmp_path: Path) -> None:
    assert detect_notation(chat_templates.GPT_OSS) is HARMONY
    template = template_of(tmp_path, chat_templates.GPT_OSS)
    question = chat_message(role="user", content="How is it?")
    result = chat_message(role="tool", content="fine", tool_call_id="a1b2c3d4e")
    calls = [call_of(json.dumps(ARGUMENTS))]
    for fields, thought in (
        ({"content": None, "reasoning": "Hm."}, "Hm."),
        ({"content": "Let me see.", "reasoning": "Hm."}, "Let me see."),
    ):
        turns = [question, chat_message(tool_calls=calls, **fields), result]
        text = template.render(for_template(turns))
        answer = text.split("<|start|>assistant", 1)[1].split("<|start|>functions", 1)[0]
        parts = (
            Reading(ChannelThought("", {}, frozenset()), OFFER).reader().feed([answer], ends=True)
        )
        assert parts.reasoning == thought and parts.content == ""
        assert [(part.name, json.loads(part.arguments)) for part in parts.calls] == [
            ("weather", ARGUMENTS)
        ]


def test_magistral_reasoning_marks_are_detected() -> None:
    assert marks.detect_marks(chat_templates.MAGISTRAL) is marks.MISTRAL


@pytest.mark.parametrize(("text", "notation"), [*TEMPLATES, (chat_templates.GPT_OSS, HARMONY)])
def test_parsers_are_chosen_by_template_or_settings(
    tmp_path: Path, text: str, notation: Notation
) -> None:
    # The template decides how answers are read, unless the settings name a parser.
    template = template_of(tmp_path, text)
    tool = {"type": "function", "function": {"name": "weather"}}
    question = {"role": "user", "content": "x"}
    body = ChatBody.model_validate({"messages": [question], "tools": [tool]})

    def reading(**settings: str) -> Reading:
        orchestrator = SimpleNamespace(
            **{"tool_call_parser": "auto", "reasoning_parser": "auto"} | settings
        )
        deployment: Any = SimpleNamespace(
            settings=orchestrator, tokenizer=Tokenizer(bundled_model("verifier"))
        )
        return Readings(deployment, template).of(body, "<|start|>assistant")

    by_template, by_setting = reading(), reading(tool_call_parser="hermes")
    assert by_template.offer is not None and by_template.offer.notation is notation
    assert isinstance(by_template.thought, ChannelThought) is (notation is HARMONY)
    assert by_setting.offer is not None and by_setting.offer.notation is HERMES
    in_channels = reading(reasoning_parser="harmony", tool_call_parser="harmony")
    assert isinstance(in_channels.thought, ChannelThought)
    assert in_channels.offer is not None and in_channels.offer.notation is HARMONY
    assert reading(reasoning_parser="none").thought is None
    with pytest.raises(Unsupported):
        reading(tool_call_parser="none")


@pytest.mark.parametrize(("alias", "notation"), PARSER_ALIASES["tool_call_parser"].items())
def test_tool_parser_names_of_other_servers_are_accepted(alias: str, notation: str) -> None:
    # Names that other servers have for tool call parsers are accepted.
    settings = OrchestratorSettings(tool_call_parser=alias)
    assert settings.tool_call_parser == notation in NOTATIONS


@pytest.mark.parametrize(("alias", "parser"), PARSER_ALIASES["reasoning_parser"].items())
def test_reasoning_parser_names_of_other_servers_are_accepted(alias: str, parser: str) -> None:
    # Names that other servers have for reasoning parsers are accepted.
    settings = OrchestratorSettings(reasoning_parser=alias)
    assert settings.reasoning_parser == parser in {*marks.MARKS, "harmony"}


@pytest.mark.parametrize("field", ["tool_call_parser", "reasoning_parser"])
def test_unknown_parser_names_are_refused(field: str) -> None:
    settings: dict[str, Any] = {field: "nobodys"}
    with pytest.raises(ValueError, match=f"(?s){field}.*'auto', 'none'"):
        OrchestratorSettings(**settings)
