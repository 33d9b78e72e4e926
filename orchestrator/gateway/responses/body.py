"""`POST /v1/responses`: the body, and its translation to a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from draftloop.errors import InvalidInput
from draftloop.logprobs import MAX_TOP_LOGPROBS
from orchestrator.gateway.body import Body, ListOf, ObjectOf
from orchestrator.gateway.generating import Count, CountOrZero
from orchestrator.gateway.other_words import CHAT_FIELDS, TranslatedBody
from orchestrator.gateway.responses.items import Item, all_tools, messages, require_known
from orchestrator.gateway.responses.names import own_names
from orchestrator.gateway.responses.tools import (
    AllowedResponseTools,
    AnyTool,
    ChosenResponseTool,
    chat_tools,
    drop_server_tools,
)
from orchestrator.gateway.schemas import Effort, Verbosity
from orchestrator.gateway.tools.schemas import MAX_TOOLS, Word, by_form
from orchestrator.gateway.unsupported import RESPONSES, without_unsupported

LOGPROBS = "message.output_text.logprobs"
ResponseToolChoice = Annotated[
    Annotated[Word, Tag("item:word")]
    | Annotated[ChosenResponseTool, Tag("item:one")]
    | Annotated[AllowedResponseTools, Tag("item:several")],
    by_form(),
]
CHAT_FIELD_NAMES = CHAT_FIELDS | {"tool_choice", "parallel_tool_calls"}


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
    def _check_schema_place(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            rule = "must be given with type json_schema, and with no other"
            raise InvalidInput("text.format.schema", rule, f"type {self.type}")
        return self

    @property
    def chat_form(self) -> dict[str, Any]:
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


class ResponseBody(TranslatedBody):
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
    tools: Annotated[ListOf[AnyTool], Field(max_length=MAX_TOOLS)] | None = Field(
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
    def _drop_unsupported(cls, body: Any) -> Any:
        body = without_unsupported(body, RESPONSES)
        if not isinstance(body, dict) or body.get("input") is None:
            return body
        require_known(body["input"])
        return {**body, "tools": drop_server_tools(body.get("tools"))}

    @model_validator(mode="after")
    def _translate_to_chat(self) -> Self:
        fields = self.model_dump(include=CHAT_FIELD_NAMES, exclude_none=True, by_alias=True)
        fields["messages"] = messages(self.instructions, self.input)
        fields["max_completion_tokens"] = self.max_output_tokens
        if self.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.text is not None and self.text.format is not None:
            fields["response_format"] = self.text.format.chat_form
        if self.reasoning is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        fields["tools"] = chat_tools(self.offered)
        if isinstance(self.tool_choice, ChosenResponseTool | AllowedResponseTools):
            fields["tool_choice"] = self.tool_choice.chat_form
        self._set_chat(fields, own_names)
        return self

    @property
    def offered(self) -> list[AnyTool]:
        """All tools that may be called."""
        return all_tools(self.tools or (), self.input)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the client asks for the tokens' log-probabilities."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
