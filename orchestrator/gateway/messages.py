"""Turns of a chat: what clients send, and what chat templates know of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from draftloop.request import check_characters
from orchestrator.gateway.body import Body, ListOf, meant
from orchestrator.gateway.tools.schemas import Call

# Of OpenAI's own client and of LiteLLM, which send back what they have made of an answer, and what
# was empty there.
OF_CLIENTS = (
    "parsed", "annotations", "refusal", "provider_specific_fields", "thinking_blocks",
    "reasoning_details", "cache_control",
)  # fmt: skip


# What the model is told in place of a picture or file that a tool brought. Refusing it would end
# the conversation, which has it from then on.
UNSEEN = "[a picture, which this model cannot see]"
UNREAD = "[a file, which this model cannot read]"


class TextPart(Body):
    """Text of a message that is given in parts."""

    type: Literal["text"]
    text: str
    cache_control: Any = Field(None, description="of no effect")
    prompt_cache_breakpoint: Any = Field(None, description="of no effect")


class Told(Protocol):
    """A part that is text."""

    @property
    def text(self) -> str: ...


def joined(content: str | Sequence[Told]) -> str:
    """A text that may have come in parts; parts are lines."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def of_system(words: Sequence[str]) -> list[dict[str, Any]]:
    """What it says at the beginning as one message, if anything: gpt-oss's template shows the first
    one alone, and others take nothing but turns behind it.
    """
    return [{"role": "system", "content": "\n\n".join(words)}] if words else []


def answered(content: str, reasoning: str, calls: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """An earlier answer as a chat says it; of each call id, name, and arguments as text."""
    told = [
        {"id": call_id, "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": told}


class Message(Body):
    """One turn. An answer may come without content."""

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
        """Clients send back an answer's message with all its fields, most of no meaning."""
        if not isinstance(message, dict):
            return message
        given = meant(message, OF_CLIENTS)
        if given.get("role") == "tool" and isinstance(given.get("content"), list):
            given["content"] = list(map(_in_words, given["content"]))
        if "reasoning_content" in given:  # a client that sends back an answer has it twice
            given["reasoning"] = given.pop("reasoning_content")
        return {"content": "", **given} if given.get("role") == "assistant" else given


def _in_words(part: Any) -> Any:
    match part:
        case {"type": "image_url" | "image"}:
            return {"type": "text", "text": UNSEEN}
        case {"type": "file"}:
            return {"type": "text", "text": UNREAD}
    return part


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As templates know them: what newer clients call developer, they call system.

    Raises InvalidInput where a message is none of its role, or arguments hold what is no character.
    """
    plain = []
    called: dict[str, str] = {}  # names of functions, which some templates tell again
    for place, message in enumerate(messages):
        _require_role(f"messages[{place}]", message)
        plain.append(_for_template(f"messages[{place}]", message))
        called |= {call.id: call.function.name for call in message.tool_calls or ()}
        if message.tool_call_id in called:
            plain[-1].setdefault("name", called[message.tool_call_id])
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
    plain: dict[str, Any] = {"role": role, "content": joined(message.content)}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.reasoning:  # whatever a template calls it
        plain["reasoning"] = plain["reasoning_content"] = message.reasoning
        if not (message.tool_calls and plain["content"]):  # which gpt-oss's takes for the same
            plain["thinking"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            _call(f"{field}.tool_calls[{number}]", call)
            for number, call in enumerate(message.tool_calls)
        ]
    return plain


def _call(field: str, call: Call) -> dict[str, Any]:
    """Templates write arguments as JSON themselves: they are given what the text means.

    What is no JSON object, such as arguments that an answer's limit has cut, is given as it stands.
    """
    said = call.function.arguments
    try:
        meant = json.loads(said) if said else {}
    except (ValueError, RecursionError):
        meant = None
    arguments = meant if isinstance(meant, dict) else said
    # Half of a surrogate pair may be written within the text, too.
    check_characters(f"{field}.function.arguments", json.dumps(arguments, ensure_ascii=False))
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
