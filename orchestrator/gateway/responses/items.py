"""The items of a response's input, and their translation to a chat's messages."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Tag, field_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.body import EchoedBody, ListOf, by_type
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.messages import (
    UNREADABLE_FILE,
    UNSEEN_IMAGE,
    assistant_message,
    join_text,
    system_messages,
)
from orchestrator.gateway.responses.custom_input import as_arguments
from orchestrator.gateway.responses.tools import AnyTool, drop_server_tools, full_name
from orchestrator.gateway.tools.schemas import FunctionName

Message = dict[str, Any]

SYSTEM_ROLES = ("system", "developer")

# Of no effect here: hints, and fields that an answer's items have when clients send them back.
IGNORED_FIELDS = (
    "id", "status", "annotations", "logprobs", "parsed", "parsed_arguments", "phase", "caller",
    "prompt_cache_breakpoint",  # prefixes are cached without it
    "internal_chat_message_metadata_passthrough",  # what Codex notes for itself
)  # fmt: skip


class Part(EchoedBody):
    """Base of the items and of their parts."""

    ignored_fields: ClassVar[Collection[str]] = IGNORED_FIELDS


class Text(Part):
    """A part that is text."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class Turn(Part):
    """A message of the chat."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | ListOf[Text]


class Reasoned(Part):
    """Reasoning of an earlier answer: the text itself, if there is more than a summary."""

    type: Literal["reasoning"]
    summary: ListOf[Text] = []
    content: ListOf[Text] | None = None
    encrypted_content: str | None = None


class AnyCall(Part):
    """A call of an earlier answer."""

    call_id: str
    name: FunctionName
    namespace: FunctionName | None = None

    @property
    def written(self) -> str:
        """The arguments as JSON text."""
        raise NotImplementedError

    @property
    def chat_form(self) -> tuple[str, str, str]:
        """Id, name and arguments."""
        return self.call_id, full_name(self.namespace, self.name), self.written


class Called(AnyCall):
    """A call of a function."""

    type: Literal["function_call"]
    arguments: str

    @property
    def written(self) -> str:
        """The arguments as the client sent them."""
        return self.arguments


class CustomCalled(AnyCall):
    """A call of a tool that takes text."""

    type: Literal["custom_tool_call"]
    input: str

    @property
    def written(self) -> str:
        """The arguments of the function that the tool is for the model."""
        return as_arguments(self.input)


class FromAgent(Part):
    """A message of another of the client's agents; Codex instructs its subagents with it."""

    ignored_fields = (*IGNORED_FIELDS, "author", "recipient")  # the text says them, too
    type: Literal["agent_message"]
    content: str | ListOf[Text]

    @field_validator("content", mode="before")
    @classmethod
    def _content_as_text(cls, content: Any) -> Any:
        return list(map(_as_text, content)) if isinstance(content, list) else content


class Returned(Part):
    """The result of a call."""

    ignored_fields = (*IGNORED_FIELDS, "name", "namespace")  # the call has them, too
    call_id: str
    output: str | ListOf[Text]

    @field_validator("output", mode="before")
    @classmethod
    def _output_as_text(cls, output: Any) -> Any:
        return list(map(_as_text, output)) if isinstance(output, list) else output


class FunctionReturned(Returned):
    """The result of a function."""

    type: Literal["function_call_output"]


class CustomReturned(Returned):
    """The result of a tool that takes text."""

    type: Literal["custom_tool_call_output"]


class MoreTools(Part):
    """Tools that may be called besides `tools`; newer versions of Codex send all their tools so."""

    ignored_fields = (*IGNORED_FIELDS, "role")
    type: Literal["additional_tools"]
    tools: ListOf[AnyTool]

    @field_validator("tools", mode="before")
    @classmethod
    def _drop_server_tools(cls, tools: Any) -> Any:
        return drop_server_tools(tools)


def _as_text(part: Any) -> Any:
    match part:
        case {"type": "input_image"}:
            return {"type": "input_text", "text": UNSEEN_IMAGE}
        case {"type": "input_file"}:
            return {"type": "input_text", "text": UNREADABLE_FILE}
        case {"type": "encrypted_content", "encrypted_content": str(text)}:
            # Only OpenAI's servers encrypt it: what a model wrote here is plain text.
            return {"type": "input_text", "text": text}
    return part


KINDS = (
    "message", "reasoning", "function_call", "function_call_output", "agent_message",
    "additional_tools", "custom_tool_call", "custom_tool_call_output",
)  # fmt: skip


Item = Annotated[
    Annotated[Turn, Tag("item:message")]
    | Annotated[Reasoned, Tag("item:reasoning")]
    | Annotated[Called, Tag("item:function_call")]
    | Annotated[FunctionReturned, Tag("item:function_call_output")]
    | Annotated[CustomCalled, Tag("item:custom_tool_call")]
    | Annotated[CustomReturned, Tag("item:custom_tool_call_output")]
    | Annotated[FromAgent, Tag("item:agent_message")]
    | Annotated[MoreTools, Tag("item:additional_tools")],
    by_type(KINDS[0]),
]


def require_known(value: Any) -> None:
    """Raises InvalidInput if the input is neither text nor items of known kinds."""
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not value:
        raise InvalidInput("input", "must be a text, or items of a conversation", value)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidInput(f"input[{index}]", "must be an object", item)
        if (kind := item.get("type") or KINDS[0]) == "item_reference":
            rule = (
                "must be the item itself: this server keeps no answers "
                "(clients that refer to items send them where they are told store: false)"
            )
            raise Unsupported(f"input[{index}].type", rule, kind)
        if kind not in KINDS:
            rule = f"must be one of {', '.join(KINDS)}"
            raise InvalidInput(f"input[{index}].type", rule, kind)


def messages(instructions: str | None, value: str | Sequence[Item]) -> list[Message]:
    """The chat's messages: instructions first, and each earlier answer as one message."""
    words = [instructions] if instructions else []
    if isinstance(value, str):
        return [*system_messages(words), {"role": "user", "content": value}]
    leading = list(itertools.takewhile(_is_leading_item, value))
    turns = system_messages(
        [*words, *(join_text(it.content) for it in leading if isinstance(it, Turn))]
    )
    answer = _AnswerMessage()
    for item in value[len(leading) :]:
        if not answer.can_take(item):
            turns.extend(answer.to_messages())
            answer = _AnswerMessage()
        match item:
            case Reasoned():
                answer.reasoning = join_text(item.content or item.summary)
            case Turn(role="assistant"):
                answer.content = join_text(item.content)
            case Called() | CustomCalled():
                answer.calls.append(item)
            case Turn():
                turns.append({"role": item.role, "content": join_text(item.content)})
            case FromAgent():
                turns.append({"role": "user", "content": join_text(item.content)})
            case Returned():
                result = {"tool_call_id": item.call_id, "content": join_text(item.output)}
                turns.append({"role": "tool", **result})
    return [*turns, *answer.to_messages()]


def _is_leading_item(item: Item) -> bool:
    return isinstance(item, MoreTools) or (isinstance(item, Turn) and item.role in SYSTEM_ROLES)


def all_tools(tools: Sequence[AnyTool], value: str | Sequence[Item]) -> list[AnyTool]:
    """All tools that may be called; if the input repeats one, its last definition holds."""
    items = () if isinstance(value, str) else value
    more = [tool for item in items if isinstance(item, MoreTools) for tool in item.tools]
    last = {(tool.type, tool.name): tool for tool in more}
    return [*(tool for tool in tools if (tool.type, tool.name) not in last), *last.values()]


class _AnswerMessage:
    """Collects the items of one answer for one message: reasoning, then content, then calls."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.content: str | None = None
        self.calls: list[Called | CustomCalled] = []

    def can_take(self, item: Item) -> bool:
        """Whether the item continues this answer."""
        match item:
            case Reasoned():
                return not self.reasoning and self.content is None and not self.calls
            case Turn(role="assistant"):
                return self.content is None and not self.calls
        return isinstance(item, Called | CustomCalled)

    def to_messages(self) -> list[Message]:
        """The message in a list; an empty list if there are no items."""
        if not (self.reasoning or self.content is not None or self.calls):
            return []
        calls = (call.chat_form for call in self.calls)
        return [assistant_message(self.content or "", self.reasoning, calls)]
