"""The turns of a conversation in the Messages API, and their translation to a chat's messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.body import Body, EchoedBody, ListOf, by_type, without_nulls
from orchestrator.gateway.messages import (
    UNREADABLE_FILE,
    UNSEEN_IMAGE,
    assistant_message,
    join_text,
    system_messages,
)
from orchestrator.gateway.tools.schemas import FunctionName

# Of no effect here: marks for the cache, which keeps prefixes by itself, and fields that an
# answer's blocks have when clients send them back.
IGNORED_FIELDS = ("cache_control", "citations", "signature", "caller", "toolset_name")
# Fields of system turns within a conversation: how long they apply, and how to answer after them.
SYSTEM_TURN_FIELDS = ("clear_at", "output_config")


class Block(EchoedBody):
    """Base of the blocks of a turn."""

    ignored_fields = IGNORED_FIELDS


class Text(Block):
    """Text of a turn, of the system's instructions, or of a call's result."""

    type: Literal["text"]
    text: str


class Thought(Block):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str


class Redacted(Block):
    """Reasoning of an answer of another server, which cannot be read here."""

    type: Literal["redacted_thinking"]
    data: str


class Called(Block):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: FunctionName
    input: dict[str, Any]


class Returned(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | ListOf[Text] = ""
    is_error: bool | None = Field(
        None, description="of no effect: the content says what went wrong"
    )

    @field_validator("content", mode="before")
    @classmethod
    def _content_as_text(cls, content: Any) -> Any:
        return list(map(_as_text, content)) if isinstance(content, list) else content


KINDS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def _as_text(block: Any) -> Any:
    """A text block in place of other blocks that a tool's result may have.

    Of tools that a search has found, the name is enough: the model knows them all.
    """
    match block:
        case {"type": "tool_reference", "tool_name": str(name)}:
            text = name
        case {"type": "document", "source": {"type": "text", "data": str(data)}}:
            text = data
        case {"type": "image"}:
            text = UNSEEN_IMAGE
        case {"type": "document"}:
            text = UNREADABLE_FILE
        case {"type": "search_result", "content": list(parts)}:
            text = _search_result_text(block, parts)
        case _:
            return block
    return {"type": "text", "text": text}


def _search_result_text(block: dict[str, Any], parts: list[Any]) -> str:
    objects = [block, *(part for part in parts if isinstance(part, dict))]
    texts = (part.get(name) for part in objects for name in ("title", "source", "text"))
    return "\n".join(text for text in texts if isinstance(text, str))


AnyBlock = Annotated[
    Annotated[Text, Tag("item:text")]
    | Annotated[Thought, Tag("item:thinking")]
    | Annotated[Redacted, Tag("item:redacted_thinking")]
    | Annotated[Called, Tag("item:tool_use")]
    | Annotated[Returned, Tag("item:tool_result")],
    by_type(),
]


class Turn(Body):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | ListOf[AnyBlock]


def normalize_turns(messages: Any) -> Any:
    """The turns without what has no effect, and with tools' results as text.

    Raises InvalidInput if a turn has a block of a kind that its role does not have.
    """
    if not isinstance(messages, list):
        return messages
    turns = [_normalize_turn(turn) if isinstance(turn, dict) else turn for turn in messages]
    for index, turn in enumerate(turns):
        _require_known(f"messages[{index}].content", turn)
    return turns


def _normalize_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """One turn in this form.

    Claude Code sends system turns without content that only say how to make the answer, and puts
    pages of a PDF that a tool has read beside the tool's result.
    """
    if turn.get("role") == "system":
        turn = {"content": "", **without_nulls(turn, SYSTEM_TURN_FIELDS)}
    if not isinstance(blocks := turn.get("content"), list):
        return turn
    if turn.get("role") == "system":
        blocks = [block for block in blocks if not _changes_known_tools(block)]
    elif any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks):
        blocks = list(map(_as_text, blocks))
    return {**turn, "content": blocks}


def _changes_known_tools(block: Any) -> bool:
    """Whether the block only adds or removes known tools: the model knows all from the start."""
    match block:
        case {"type": "tool_removal"}:
            return True
        case {"type": "tool_addition", "tool": {"type": kind}}:
            return bool(kind != "tool_definition")  # it is defined nowhere else
    return False


def _require_known(field: str, turn: Any) -> None:
    blocks = turn.get("content") if isinstance(turn, dict) else None
    known = KINDS.get(turn["role"]) if blocks and isinstance(turn.get("role"), str) else None
    if known is None or not isinstance(blocks, list):
        return  # the validation of its form reports it
    for index, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise InvalidInput(f"{field}[{index}]", "must be an object", block)
        if block.get("type") not in known:
            rule = f"must be one of {', '.join(known)} with role {turn['role']}"
            raise InvalidInput(f"{field}[{index}].type", rule, block.get("type"))


def messages(system: str | Sequence[Text] | None, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The chat's messages: the system's first, and each result of a call as a message of its own.

    Raises InvalidInput if there are none.
    """
    chat = [message for turn in turns for message in _turn_messages(turn)]
    first = list(itertools.takewhile(lambda message: message["role"] == "system", chat))
    words = [*([join_text(system)] if system else ()), *(message["content"] for message in first)]
    chat[: len(first)] = system_messages(words)
    if not chat:
        raise InvalidInput("messages", "must say something", [turn.role for turn in turns])
    return chat


def continues_last_turn(turns: Sequence[Turn]) -> bool:
    """Whether the answer continues the last turn. Raises InvalidInput if that turn has calls."""
    last = turns[-1]
    if last.role != "assistant":
        return False
    if any(isinstance(block, Called) for block in last.content):
        rule = "must be followed by what came of its calls, as tool_result"
        raise InvalidInput(f"messages[{len(turns) - 1}]", rule, "tool_use")
    return True


def _turn_messages(turn: Turn) -> Iterator[dict[str, Any]]:
    if turn.role == "system" and not turn.content:
        return
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
    elif turn.role == "assistant":
        yield _assistant_message(turn.content)
    else:
        yield from _user_messages(turn.role, turn.content)


def _assistant_message(blocks: Sequence[AnyBlock]) -> dict[str, Any]:
    thoughts = [block.thinking for block in blocks if isinstance(block, Thought)]
    called = [block for block in blocks if isinstance(block, Called)]
    texts = [block for block in blocks if isinstance(block, Text)]
    calls = ((block.id, block.name, _arguments_text(block.input)) for block in called)
    return assistant_message(join_text(texts), "\n".join(thoughts), calls)


def _user_messages(role: str, blocks: Sequence[AnyBlock]) -> Iterator[dict[str, Any]]:
    """The blocks as messages, in their order; consecutive texts become one message."""
    texts: list[Text] = []
    for block in blocks:
        if isinstance(block, Text):
            texts.append(block)
        elif isinstance(block, Returned):
            if texts:
                yield {"role": role, "content": join_text(texts)}
                texts = []
            result = {"tool_call_id": block.tool_use_id, "content": join_text(block.content)}
            yield {"role": "tool", **result}
    if texts or not blocks:
        yield {"role": role, "content": join_text(texts)}


def _arguments_text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
