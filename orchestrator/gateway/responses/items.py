"""The items of a response's input, and their translation to a chat's messages."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Tag, field_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.body import ListOf, SentBack, by_type
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.messages import UNREAD, UNSEEN, answered, joined, of_system
from orchestrator.gateway.responses.custom_input import as_arguments
from orchestrator.gateway.responses.tools import AnyTool, full_name, that_clients_run
from orchestrator.gateway.tools.schemas import FunctionName

Message = dict[str, Any]

SYSTEMS = ("system", "developer")

# Of no effect here: hints, and fields that an answer's items have when clients send them back.
OF_NO_EFFECT = (
    "id", "status", "annotations", "logprobs", "parsed", "parsed_arguments", "phase", "caller",
    "prompt_cache_breakpoint",  # prefixes are cached without it
    "internal_chat_message_metadata_passthrough",  # what Codex notes for itself
)  # fmt: skip


class Part(SentBack):
    """Base of the items and of their parts."""

    of_no_effect: ClassVar[Collection[str]] = OF_NO_EFFECT


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
    def as_in_chats(self) -> tuple[str, str, str]:
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

    of_no_effect = (*OF_NO_EFFECT, "author", "recipient")  # the text says them, too
    type: Literal["agent_message"]
    content: str | ListOf[Text]

    @field_validator("content", mode="before")
    @classmethod
    def _written(cls, content: Any) -> Any:
        return list(map(_as_text, content)) if isinstance(content, list) else content


class Returned(Part):
    """The result of a call."""

    of_no_effect = (*OF_NO_EFFECT, "name", "namespace")  # the call has them, too
    call_id: str
    output: str | ListOf[Text]

    @field_validator("output", mode="before")
    @classmethod
    def _brought(cls, output: Any) -> Any:
        return list(map(_as_text, output)) if isinstance(output, list) else output


class FunctionReturned(Returned):
    """The result of a function."""

    type: Literal["function_call_output"]


class CustomReturned(Returned):
    """The result of a tool that takes text."""

    type: Literal["custom_tool_call_output"]


class MoreTools(Part):
    """Tools that may be called besides `tools`; newer versions of Codex send all their tools so."""

    of_no_effect = (*OF_NO_EFFECT, "role")
    type: Literal["additional_tools"]
    tools: ListOf[AnyTool]

    @field_validator("tools", mode="before")
    @classmethod
    def _offered(cls, tools: Any) -> Any:
        return that_clients_run(tools)


def _as_text(part: Any) -> Any:
    match part:
        case {"type": "input_image"}:
            return {"type": "input_text", "text": UNSEEN}
        case {"type": "input_file"}:
            return {"type": "input_text", "text": UNREAD}
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


def require_known(said: Any) -> None:
    """Raises InvalidInput if the input is neither text nor items of known kinds."""
    if isinstance(said, str):
        return
    if not isinstance(said, list) or not said:
        raise InvalidInput("input", "must be a text, or items of a conversation", said)
    for place, item in enumerate(said):
        if not isinstance(item, dict):
            raise InvalidInput(f"input[{place}]", "must be an object", item)
        if (kind := item.get("type") or KINDS[0]) == "item_reference":
            rule = (
                "must be the item itself: this server keeps no answers "
                "(clients that refer to items send them where they are told store: false)"
            )
            raise Unsupported(f"input[{place}].type", rule, kind)
        if kind not in KINDS:
            rule = f"must be one of {', '.join(KINDS)}"
            raise InvalidInput(f"input[{place}].type", rule, kind)


def messages(instructions: str | None, said: str | Sequence[Item]) -> list[Message]:
    """The chat's messages: instructions first, and each earlier answer as one message."""
    words = [instructions] if instructions else []
    if isinstance(said, str):
        return [*of_system(words), {"role": "user", "content": said}]
    begun = list(itertools.takewhile(_is_before_turns, said))
    turns = of_system([*words, *(joined(it.content) for it in begun if isinstance(it, Turn))])
    answer = _Answer()
    for item in said[len(begun) :]:
        if not answer.takes(item):
            turns.extend(answer.told())
            answer = _Answer()
        match item:
            case Reasoned():
                answer.reasoning = joined(item.content or item.summary)
            case Turn(role="assistant"):
                answer.content = joined(item.content)
            case Called() | CustomCalled():
                answer.calls.append(item)
            case Turn():
                turns.append({"role": item.role, "content": joined(item.content)})
            case FromAgent():
                turns.append({"role": "user", "content": joined(item.content)})
            case Returned():
                told = {"tool_call_id": item.call_id, "content": joined(item.output)}
                turns.append({"role": "tool", **told})
    return [*turns, *answer.told()]


def _is_before_turns(item: Item) -> bool:
    return isinstance(item, MoreTools) or (isinstance(item, Turn) and item.role in SYSTEMS)


def with_more(tools: Sequence[AnyTool], said: str | Sequence[Item]) -> list[AnyTool]:
    """All tools that may be called; if the input repeats one, its last definition holds."""
    items = () if isinstance(said, str) else said
    more = [tool for item in items if isinstance(item, MoreTools) for tool in item.tools]
    last = {(tool.type, tool.name): tool for tool in more}
    return [*(tool for tool in tools if (tool.type, tool.name) not in last), *last.values()]


class _Answer:
    """Collects the items of one answer for one message: reasoning, then content, then calls."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.content: str | None = None
        self.calls: list[Called | CustomCalled] = []

    def takes(self, item: Item) -> bool:
        """Whether the item continues this answer."""
        match item:
            case Reasoned():
                return not self.reasoning and self.content is None and not self.calls
            case Turn(role="assistant"):
                return self.content is None and not self.calls
        return isinstance(item, Called | CustomCalled)

    def told(self) -> list[Message]:
        """The message in a list; an empty list if there are no items."""
        if not (self.reasoning or self.content is not None or self.calls):
            return []
        calls = (call.as_in_chats for call in self.calls)
        return [answered(self.content or "", self.reasoning, calls)]
