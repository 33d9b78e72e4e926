"""Renders messages to one prompt with the chat template that the model was trained with.

A template comes with a model, so it is not trusted: it runs in jinja's sandbox. Users' messages are
data that it prints, never templates.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftloop.errors import InvalidInput, StartupFailure
from orchestrator.gateway.json_file import read_json_object

DEFAULT_TEMPLATE = Path(__file__).parent / "default_chat_template.jinja"
# Always defined, as in transformers: templates distinguish "none given" from "undefined".
DEFAULT_VARIABLES: Mapping[str, Any] = {"tools": None, "documents": None}
TEMPLATES = ("default", "tool_use")  # names, where a model has several templates
TOOLS = re.compile(r"\btools\b")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Generation(Extension):
    """The tag `{% generation %}`: it marks text that a model is trained on. Of no effect here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


EXTENSIONS: list[type[Extension]] = [loopcontrols, Generation]


class ChatTemplate:
    """Renders messages. Raises StartupFailure if the template cannot be read or compiled."""

    def __init__(self, tokenizer_folder: Path, override: Path | None = None) -> None:
        config = read_json_object(tokenizer_folder / "tokenizer_config.json")
        self.source, text, self.tools_text = _find_template(tokenizer_folder, config, override)
        self._tokens = {name: _token_text(config.get(name)) for name in SPECIAL_TOKENS}
        self._template = self._compile(text)
        self._tools_template = self._compile(self.tools_text)

    @property
    def shows_tools(self) -> bool:
        """Whether the template shows the model the tools that it may call."""
        return TOOLS.search(self.tools_text) is not None

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. `options` are further variables of the template, such as `enable_thinking`.

        Raises InvalidInput if the template refuses the messages, even when they are merged into
        turns, or if there are tools and it does not show them.
        """
        if tools and not self.shows_tools:
            rule = f"need a chat template that shows tools, which {self.source.name} does not"
            raise InvalidInput("tools", f"{rule}; give one by --chat-template", len(tools))
        template = self._tools_template if tools else self._template
        variables = {**DEFAULT_VARIABLES, **self._tokens, **(options or {}), "messages": messages}
        if tools:
            variables["tools"] = tools
        variables["add_generation_prompt"] = add_generation_prompt
        try:
            return _render_or_merge_turns(template, variables)
        except Exception as error:  # a template is foreign code and may raise anything
            rule = f"must be what the model's chat template takes ({error})"
            raise InvalidInput(
                "messages", rule, [message["role"] for message in messages]
            ) from None

    def render_open(self, messages: Sequence[dict[str, Any]], **arguments: Any) -> str:
        """The prompt up to the end of the last message's content, without what closes its turn.

        Raises InvalidInput if the template does not show that content unchanged.
        """
        text = self.render(messages, add_generation_prompt=False, **arguments)
        *before, message = messages
        content, marker = message["content"], uuid.uuid4().hex  # no text has it
        marked_messages = [*before, {**message, "content": content + marker}]
        marked_text = self.render(marked_messages, add_generation_prompt=False, **arguments)
        head, has_marker, _ = marked_text.rpartition(marker)
        if not text.startswith(head):
            head = head.rstrip()  # templates may cut off white space at its end
        shown = content.strip()
        if (
            not has_marker
            or not shown
            or not text.startswith(head)
            or shown not in head[-len(content) :]
        ):
            rule = "needs a last message with a content, which the chat template shows as it stands"
            raise InvalidInput("continue_final_message", rule, content)
        return head

    def _compile(self, text: str) -> jinja2.Template:
        try:
            return _environment().from_string(text)
        except jinja2.TemplateError as error:
            raise StartupFailure(f"chat_template: {self.source} is no template: {error}") from None


def _render_or_merge_turns(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Renders the messages as they are or, if the template refuses them, merged into turns.

    Strict templates, such as Gemma's, want one system message and then alternating turns. Agents
    send several system messages, and several user messages in a row.
    """
    try:
        return _render(template, variables)
    except jinja2.TemplateError:
        turns = _merge_turns(variables["messages"])
        if turns == list(variables["messages"]):
            raise
        return _render(template, variables | {"messages": turns})


def _merge_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages merged into turns.

    Leading system messages become one, later ones become the user's, and consecutive messages of
    the user are joined.
    """
    first = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    later = (
        {**message, "role": "user"} if message["role"] == "system" else message
        for message in messages[len(first) :]
    )
    turns: list[dict[str, Any]] = []
    for role, run in itertools.groupby([*first, *later], key=lambda message: message["role"]):
        turn = list(run)
        if role in ("system", "user"):
            turn = [{**turn[0], "content": "\n\n".join(message["content"] for message in turn)}]
        turns.extend(turn)
    return turns


def _render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Renders with the arguments of calls as objects or, if that raises TypeError, as JSON text.

    Most templates write arguments as JSON themselves; some want the text.
    """
    try:
        return template.render(variables)
    except TypeError:
        messages = [_with_arguments_as_text(message) for message in variables["messages"]]
        if messages == variables["messages"]:
            raise
        return template.render(variables | {"messages": messages})


def _with_arguments_as_text(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else _to_json(arguments)
        calls.append({**call, "function": {**function, "arguments": text}})
    return {**message, "tool_calls": calls}


def _environment() -> ImmutableSandboxedEnvironment:
    """The sandbox, with the filters and functions that templates on model hubs expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=EXTENSIONS
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` without jinja's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _raise_exception(reason: str) -> NoReturn:
    raise jinja2.TemplateError(reason)


def _find_template(
    folder: Path, config: dict[str, Any], override: Path | None
) -> tuple[Path, str, str]:
    """File and text of the template, and the text of the template for chats with tools.

    The template is the setting's, the model's, or else the plain default. Chats with tools use the
    same one unless the model has another for them.
    """
    template_file = folder / "chat_template.jinja"
    if override is None and not template_file.exists():
        configured = config.get("chat_template")
        named: dict[Any, Any] = {"default": configured}
        if isinstance(configured, list):  # several, by name
            entries = (one for one in configured if isinstance(one, dict))
            named = {"default": "", **{one.get("name"): one.get("template") for one in entries}}
        texts = [named[name] for name in TEMPLATES if isinstance(named.get(name), str)]
        if texts:
            return folder / "tokenizer_config.json", texts[0], texts[-1]
    file = override or (template_file if template_file.exists() else DEFAULT_TEMPLATE)
    text = _read(file)
    tools_file = folder / "additional_chat_templates" / f"{TEMPLATES[1]}.jinja"
    return file, text, _read(tools_file) if file == template_file and tools_file.exists() else text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupFailure(f"chat_template: {file} cannot be read: {error}") from None


def _token_text(token: Any) -> str:
    """A special token's text; the file has it as text or as an object with its `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
