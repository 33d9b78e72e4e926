"""Chat templates: where they are found, what they may do, and what users cannot do."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput, StartupFailure
from orchestrator.gateway.chat_template import DEFAULT_TEMPLATE, ChatTemplate
from orchestrator.gateway.prompts import Prompts
from orchestrator.gateway.schemas import ChatBody
from tests.support.gateway import gateway

TALK = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}|{% set said = messages[1:] %}"
    "{% else %}{% set said = messages %}{% endif %}{% for m in said %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }}:{{ m.content }}|"
    "{% endfor %}"
)
AGENTS = (
    "system", "system", "user", "user", "assistant", "system", "user", "assistant", "user",
)  # fmt: skip


def template_folder(path: Path, config: dict[str, Any], template: str | None = None) -> Path:
    """A tokenizer's folder with only the template's files."""
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


def test_model_without_a_template_uses_the_default() -> None:
    template = ChatTemplate(bundled_model("verifier"))
    assert template.source == DEFAULT_TEMPLATE
    assert template.render(TALK) == "System: Be short.\n\nUser: Hi\n\nAssistant:"


@pytest.mark.parametrize("chat_template", [CHATML, [{"name": "tools", "template": "no"},
                                           {"name": "default", "template": CHATML}]])  # fmt: skip
def test_template_of_the_model_is_used(tmp_path: Path, chat_template: Any) -> None:
    template = ChatTemplate(template_folder(tmp_path, {"chat_template": chat_template}))
    assert template.render(TALK[1:]).endswith("Hi<|im_end|>\n<|im_start|>assistant\n")
    assert "assistant" not in template.render(TALK, add_generation_prompt=False)


def test_setting_overrides_template_file_overrides_config(tmp_path: Path) -> None:
    model = template_folder(tmp_path, {"chat_template": "config"}, "beside")
    assert ChatTemplate(model).render(TALK) == "beside"
    (tmp_path / "mine.jinja").write_text("mine")
    assert ChatTemplate(model, tmp_path / "mine.jinja").render(TALK) == "mine"


def test_separate_tool_template_is_used_with_tools(tmp_path: Path) -> None:
    """transformers saves a model with several templates in this way."""
    template_folder(tmp_path, {}, "plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools[0].name }}")
    template = ChatTemplate(tmp_path)
    assert template.shows_tools and template.render(TALK, tools=[{"name": "look"}]) == "look"
    assert template.render(TALK) == "plain"
    (tmp_path / "other.jinja").write_text("other")
    assert not ChatTemplate(tmp_path, tmp_path / "other.jinja").shows_tools


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>"}])
def test_special_tokens_are_available_in_templates(tmp_path: Path, token: Any) -> None:
    model = template_folder(
        tmp_path, {"bos_token": token}, "{{ bos_token }}{{ messages[0].content }}"
    )
    assert ChatTemplate(model).render(TALK) == "<s>Be short."


def test_templates_support_loop_controls_and_tojson(tmp_path: Path) -> None:
    # Templates on hubs use `break` in loops, and `tojson` without HTML escapes.
    text = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}"
    template = ChatTemplate(template_folder(tmp_path, {}, text + "{% endfor %}"))
    assert template.render([{"role": "user", "content": "<ü>"}, *TALK]) == (
        '{"role": "user", "content": "<ü>"}'
    )


def test_templates_have_the_helpers_of_transformers(tmp_path: Path) -> None:
    """Templates find what transformers gives them: the date, `tools` as none, generation blocks."""
    text = (
        "{{ strftime_now('%Y') }} {% if tools is not none %}tools{% endif %}"
        "{% generation %}{{ messages[1].content }}{% endgeneration %}"
        "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}"
    )
    rendered = ChatTemplate(template_folder(tmp_path, {}, text)).render(TALK)
    assert rendered == f'{datetime.now().astimezone().year} Hi{{"a":2,"b":1}}'


def test_request_options_reach_the_template(tmp_path: Path) -> None:
    """A request's options reach the template but never replace its messages."""
    text = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    template = ChatTemplate(template_folder(tmp_path, {}, text + "{{ messages[1].content }}"))
    assert template.render(TALK) == "Hi"
    quiet: dict[str, Any] = {"enable_thinking": False, "messages": [], "add_generation_prompt": 3}
    assert template.render(TALK, options=quiet) == "<think></think>Hi"


@pytest.mark.parametrize(("effort", "options", "expected"), [
    ("none", {}, "none False False"), ("high", {}, "high True True"),
    ("high", {"thinking": False}, "high True False"),
])  # fmt: skip
async def test_reasoning_effort_sets_the_thinking_options(
    tmp_path: Path, effort: str, options: dict[str, Any], expected: str
) -> None:
    """The template gets both names: DeepSeek V3.1 knows only `thinking`."""
    text = "{{ reasoning_effort }} {{ enable_thinking }} {{ thinking }}"
    template = ChatTemplate(template_folder(tmp_path, {}, text))
    body = {"messages": TALK, "reasoning_effort": effort, "chat_template_kwargs": options}
    async with gateway() as (_, deployment):
        prompt = await Prompts(deployment, template).of_chat(ChatBody.model_validate(body))
    assert prompt.text == expected


@pytest.mark.parametrize("text", [
    "{{ raise_exception('roles must alternate') }}", "{{ messages[7].content }}",
    "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ 1 // 0 }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}", "{{ range(10000000) | list }}",
    "{{ none | dictsort }}", "{{ {}['a'].b }}",
])  # fmt: skip
def test_template_refusals_and_violations_are_input_errors(tmp_path: Path, text: str) -> None:
    template = ChatTemplate(template_folder(tmp_path, {}, text))
    with pytest.raises(InvalidInput) as caught:
        template.render(TALK)
    assert caught.value.field == "messages"
    if "raise_exception" in text:
        assert "roles must alternate" in str(caught.value)


@pytest.mark.parametrize("content", ["<", "end", "|", "e", "im_end", "user", " So:\n 1.  ", "Hi"])
@pytest.mark.parametrize("expression", ["m.content", "m.content | trim"])
def test_last_message_is_continued(tmp_path: Path, content: str, expression: str) -> None:
    """The prompt ends with it, even if the marks of turns contain the same letters."""
    template = ChatTemplate(template_folder(tmp_path, {}, CHATML.replace("m.content", expression)))
    continued = content.strip() if "trim" in expression else content
    opened = template.render_open([*TALK, {"role": "assistant", "content": content}])
    assert opened == template.render(TALK) + continued


@pytest.mark.parametrize("expression", ["m.content | upper", "m.content[:1]", "''"])
def test_last_message_missing_from_the_prompt_cannot_be_continued(
    tmp_path: Path, expression: str
) -> None:
    # The template must show the last message as it stands.
    template = ChatTemplate(template_folder(tmp_path, {}, CHATML.replace("m.content", expression)))
    with pytest.raises(InvalidInput) as caught:
        template.render_open([*TALK, {"role": "assistant", "content": "So"}])
    assert caught.value.field == "continue_final_message"


def test_strict_template_gets_alternating_turns(tmp_path: Path) -> None:
    """Agents send several system and user messages in a row, which Gemma's template refuses."""
    messages = [
        {"role": role, "content": role[0] + str(place)} for place, role in enumerate(AGENTS)
    ]
    lenient = ChatTemplate(template_folder(tmp_path, {}, CHATML)).render(messages)
    assert lenient.count("system\n") == 3 and lenient.count("user\n") == 4
    strict = ChatTemplate(template_folder(tmp_path, {}, STRICT))
    turns = "s0\n\ns1|user:u2\n\nu3|assistant:a4|user:s5\n\nu6|assistant:a7|user:u8|"
    assert strict.render(messages) == turns
    partial_answer = {"role": "assistant", "content": "So"}
    assert strict.render_open([*messages, partial_answer]) == f"{turns}assistant:So"
    with pytest.raises(InvalidInput, match="roles must alternate"):
        strict.render([*messages, partial_answer, partial_answer])


@pytest.mark.parametrize("content", ["{{ 7 * 7 }}", "{% raise %}", "{#"])
def test_message_content_is_never_rendered_as_a_template(content: str) -> None:
    template = ChatTemplate(bundled_model("verifier"))
    assert content in template.render([{"role": "user", "content": content}])


def test_invalid_template_fails_startup(tmp_path: Path) -> None:
    with pytest.raises(StartupFailure, match="chat_template"):
        ChatTemplate(template_folder(tmp_path, {}, "{% if %}"))
    with pytest.raises(StartupFailure, match="cannot be read"):
        ChatTemplate(tmp_path, tmp_path / "absent.jinja")
