"""`POST /v1/responses`: the body, and its translation to a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from draftloop.errors import InvalidInput
from draftloop.logprobs import MAX_TOP_LOGPROBS
from orchestrator.gateway.body import Body, ListOf, ObjectOf
from orchestrator.gateway.generating import Count, CountOrZero
from orchestrator.gateway.other_words import SHARED, InOtherWords
from orchestrator.gateway.responses.items import Item, messages, require_known, with_more
from orchestrator.gateway.responses.names import own_names
from orchestrator.gateway.responses.tools import (
    AllowedResponseTools,
    AnyTool,
    ChosenResponseTool,
    that_clients_run,
    tools_as_in_chats,
)
from orchestrator.gateway.schemas import Effort, Verbosity
from orchestrator.gateway.tools.schemas import MOST_TOOLS, Word, by_form
from orchestrator.gateway.unsupported import RESPONSES, without_unsupported

LOGPROBS = "message.output_text.logprobs"
ResponseToolChoice = Annotated[
    Annotated[Word, Tag("item:word")]
    | Annotated[ChosenResponseTool, Tag("item:one")]
    | Annotated[AllowedResponseTools, Tag("item:several")],
    by_form(),
]
AS_IN_CHATS = SHARED | {"tool_choice", "parallel_tool_calls"}


class Thinking(Body):
    """OpenAI's `reasoning`."""

    effort: Effort | None = Field(
        None, description="of no effect where the model's chat template takes none"
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="of no effect: the reasoning itself is told"
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="the older name of summary"
    )
    context: str | None = Field(
        None, description="of no effect: the chat template says what it shows of earlier reasoning"
    )


class TextFormat(Body):
    """OpenAI's `text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    name: str | None = Field(None, description="of no effect")
    description: str | None = Field(None, description="of no effect")
    strict: bool | None = Field(None, description="of no effect: the schema always holds")

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            rule = "must be given with type json_schema, and with no other"
            raise InvalidInput("text.format.schema", rule, f"type {self.type}")
        return self

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """A chat's `response_format`, which has the schema in an object of its own."""
        schema = None if self.schema_ is None else {"schema": self.schema_}
        return {"type": self.type, "json_schema": schema}


class TextOptions(Body):
    """OpenAI's `text`."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ResponseStreamOptions(Body):
    """OpenAI's `stream_options` of responses."""

    include_obfuscation: Literal[False] | None = Field(None, description="there is none")
    include_usage: bool | None = Field(
        None, description="of no effect: the last event always has it; aiperf asks for it"
    )
    reasoning_summary_delivery: str | None = Field(
        None, description="of no effect: there are no summaries"
    )


class ResponseBody(InOtherWords):
    """`POST /v1/responses`. Clients send the whole conversation: this server stores none."""

    input: str | ListOf[Item]
    instructions: str | None = Field(None, description="the system's message, before the input")
    max_output_tokens: Count | None = Field(
        None, description="most tokens, reasoning included; the server's default without"
    )
    include: ListOf[str] | None = Field(
        None, description=f"{LOGPROBS!r}; others name what no answer here has"
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: TextOptions | None = None
    reasoning: Thinking | None = None
    tools: Annotated[ListOf[AnyTool], Field(max_length=MOST_TOOLS)] | None = Field(
        None,
        description="functions, custom tools, and namespaces of them; OpenAI's own tools are not "
        "offered to the model",
    )
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: CountOrZero | None = Field(
        None, description="of no effect: counts tools that run at the server, which has none"
    )
    stream_options: ResponseStreamOptions | None = None
    client_metadata: ObjectOf[Any] | None = Field(
        None, description="of no effect: what Codex says of itself"
    )
    access_programs: ObjectOf[Any] | None = Field(
        None, description="of no effect: programs are OpenAI's"
    )

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, body: Any) -> Any:
        body = without_unsupported(body, RESPONSES)
        if not isinstance(body, dict) or body.get("input") is None:
            return body
        require_known(body["input"])
        return {**body, "tools": that_clients_run(body.get("tools"))}

    @model_validator(mode="after")
    def _as_a_chat(self) -> Self:
        said = self.model_dump(include=AS_IN_CHATS, exclude_none=True, by_alias=True)
        said["messages"] = messages(self.instructions, self.input)
        said["max_completion_tokens"] = self.max_output_tokens
        if self.tells_logprobs:
            said |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.text is not None and self.text.format is not None:
            said["response_format"] = self.text.format.as_in_chats
        if self.reasoning is not None:
            said["reasoning_effort"] = self.reasoning.effort
        said["tools"] = tools_as_in_chats(self.offered)
        if isinstance(self.tool_choice, ChosenResponseTool | AllowedResponseTools):
            said["tool_choice"] = self.tool_choice.as_in_chats
        self._become(said, own_names)
        return self

    @property
    def offered(self) -> list[AnyTool]:
        """All tools that may be called."""
        return with_more(self.tools or (), self.input)

    @property
    def tells_logprobs(self) -> bool:
        """Whether the client asks for the tokens' log-probabilities."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
