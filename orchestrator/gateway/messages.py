"""Messages of a chat: as clients send them, and as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from draftloop.request import check_characters
from orchestrator.gateway.body import Body, ListOf, without_nulls
from orchestrator.gateway.tools.schemas import Call

# Of no effect: fields that OpenAI's own client and LiteLLM add to an answer, or that were empty in
# it, and that they send back with it.
CLIENT_FIELDS = (
    "parsed", "annotations", "refusal", "provider_specific_fields", "thinking_blocks",
    "reasoning_details", "cache_control",
)  # fmt: skip


# What the model reads in place of a picture or file in a tool's result. A refusal would end the
# conversation, since all later requests contain the result.
UNSEEN_IMAGE = "[a picture, which this model cannot see]"
UNREADABLE_FILE = "[a file, which this model cannot read]"


class TextPart(Body):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str
    cache_control: Any = Field(None, description="of no effect")
    prompt_cache_breakpoint: Any = Field(None, description="of no effect")


class HasText(Protocol):
    """A part that has text."""

    @property
    def text(self) -> str: ...


def join_text(content: str | Sequence[HasText]) -> str:
    """The text of a content that may have come in parts, which are joined by line ends."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def system_messages(texts: Sequence[str]) -> list[dict[str, Any]]:
    """The system's texts as one message; no message if there are none.

    gpt-oss's template shows only the first system message, and others take nothing but turns of
    user and assistant after it.
    """
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def assistant_message(
    content: str, reasoning: str, calls: Iterable[tuple[str, str, str]]
) -> dict[str, Any]:
    """An earlier answer as a chat's message. A call is its id, name, and arguments as JSON text."""
    tool_calls = [
        {"id": call_id, "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {
        "role": "assistant",
        "content": content,
        "reasoning": reasoning,
        "tool_calls": tool_calls,
    }


class Message(Body):
    """One message. An assistant's may come without content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | ListOf[TextPart]
    name: str | None = None
    reasoning: str | None = Field(
        None, description="of an earlier answer; `reasoning_content` is another name of it"
    )
    tool_calls: ListOf[Call] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, message: Any) -> Any:
        """Drops nulls and fields of no effect: clients send back an answer with all its fields."""
        if not isinstance(message, dict):
            return message
        fields = without_nulls(message, CLIENT_FIELDS)
        if fields.get("role") == "tool" and isinstance(fields.get("content"), list):
            fields["content"] = list(map(_as_text_part, fields["content"]))
        if "reasoning_content" in fields:  # answers have it under both names
            fields["reasoning"] = fields.pop("reasoning_content")
        return {"content": "", **fields} if fields.get("role") == "assistant" else fields


def _as_text_part(part: Any) -> Any:
    match part:
        case {"type": "image_url" | "image"}:
            return {"type": "text", "text": UNSEEN_IMAGE}
        case {"type": "file"}:
            return {"type": "text", "text": UNREADABLE_FILE}
    return part


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as templates take them, with role `system` for newer clients' `developer`.

    Raises InvalidInput if a field does not fit a message's role, or arguments contain lone
    surrogates.
    """
    plain = []
    function_names: dict[
        str, str
    ] = {}  # function names by call id; some templates show them with results
    for index, message in enumerate(messages):
        _require_role(f"messages[{index}]", message)
        plain.append(_for_template(f"messages[{index}]", message))
        function_names |= {call.id: call.function.name for call in message.tool_calls or ()}
        if message.tool_call_id in function_names:
            plain[-1].setdefault("name", function_names[message.tool_call_id])
    return plain


def _require_role(field: str, message: Message) -> None:
    for name in ("tool_calls", "reasoning"):
        if getattr(message, name) and message.role != "assistant":
            rule = "must only be given with role assistant"
            raise InvalidInput(f"{field}.{name}", rule, f"role {message.role}")
    if (message.tool_call_id is None) == (message.role == "tool"):
        rule = "must be given with role tool, and with no other"
        raise InvalidInput(f"{field}.tool_call_id", rule, f"role {message.role}")


def _for_template(field: str, message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": join_text(message.content)}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.reasoning:  # under every name that templates use
        plain["reasoning"] = plain["reasoning_content"] = message.reasoning
        if not (message.tool_calls and plain["content"]):  # gpt-oss's takes both for the same
            plain["thinking"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            _call(f"{field}.tool_calls[{index}]", call)
            for index, call in enumerate(message.tool_calls)
        ]
    return plain


def _call(field: str, call: Call) -> dict[str, Any]:
    """The call with its arguments parsed, since templates write them as JSON themselves.

    Arguments that are not a JSON object, such as those cut off by a token limit, stay text.
    """
    text = call.function.arguments
    try:
        parsed = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        parsed = None
    arguments = parsed if isinstance(parsed, dict) else text
    # Escapes within the arguments' text may be lone surrogates, too.
    check_characters(f"{field}.function.arguments", json.dumps(arguments, ensure_ascii=False))
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
