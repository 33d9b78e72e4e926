"""`POST /v1/messages`: the body, and its translation to a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.anthropic.names import own_names
from orchestrator.gateway.anthropic.tools import Choice, MessagesTool, drop_server_tools
from orchestrator.gateway.anthropic.turns import (
    Text,
    Turn,
    continues_last_turn,
    messages,
    normalize_turns,
)
from orchestrator.gateway.body import Body, ListOf, ObjectOf
from orchestrator.gateway.generating import Count
from orchestrator.gateway.other_words import CHAT_FIELDS, TranslatedBody
from orchestrator.gateway.schemas import Effort
from orchestrator.gateway.tools.schemas import MAX_TOOLS
from orchestrator.gateway.unsupported import MESSAGES, without_unsupported

CHAT_FIELD_NAMES = CHAT_FIELDS - {"metadata", "chat_template_kwargs"}


class Thinking(Body):
    """Anthropic's `thinking`."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Count | None = Field(None, description="of no effect: max_tokens bounds it")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted: it is left out of what is sent; there are no summaries"
    )

    @property
    def template_options(self) -> dict[str, bool]:
        """The same under the names that chat templates know."""
        wanted = self.type != "disabled"
        return {"enable_thinking": wanted, "thinking": wanted}


class OutputFormat(Body):
    """Anthropic's `output_config.format`."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] | bool = Field(alias="schema")

    @property
    def chat_form(self) -> dict[str, Any]:
        """A chat's `response_format`, which has the schema in an object of its own."""
        return {"type": self.type, "json_schema": {"schema": self.schema_}}


class OutputConfig(Body):
    """Anthropic's `output_config`."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class MessagesBody(TranslatedBody):
    """`POST /v1/messages`, and `count_tokens`, which counts the tokens of its prompt."""

    messages: Annotated[ListOf[Turn], Field(min_length=1)]
    system: str | ListOf[Text] | None = Field(None, description="the system's words, before them")
    max_tokens: Count | None = Field(
        None, description="most tokens, thinking included; the server's default without"
    )
    stop_sequences: ListOf[str] | None = None
    metadata: ObjectOf[Any] | None = Field(None, description="of no effect")
    tools: Annotated[ListOf[MessagesTool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Anthropic's own, which run at its servers, are not offered to the model"
    )
    tool_choice: Choice | None = None
    thinking: Thinking | None = Field(
        None, description="of no effect where the model's chat template leaves no choice"
    )
    output_config: OutputConfig | None = None
    cache_control: Any = Field(None, description="of no effect: beginnings are kept by themselves")
    context_management: Any = Field(
        None, description="of no effect: the whole conversation is read"
    )
    diagnostics: Any = Field(None, description="of no effect")
    inference_geo: str | None = Field(None, description="of no effect")

    @model_validator(mode="before")
    @classmethod
    def _drop_unsupported(cls, body: Any) -> Any:
        body = without_unsupported(body, MESSAGES)
        if not isinstance(body, dict):
            return body
        fields = {**body, "tools": drop_server_tools(body.get("tools"))}
        if "messages" in body:
            fields["messages"] = normalize_turns(body["messages"])
        return fields

    @model_validator(mode="after")
    def _translate_to_chat(self) -> Self:
        if self.stop is not None and self.stop_sequences is not None:
            raise InvalidInput("stop", "must not be given with stop_sequences", "both")
        fields = self.model_dump(include=CHAT_FIELD_NAMES, exclude_none=True, by_alias=True)
        fields["messages"] = messages(self.system, self.messages)
        fields["continue_final_message"] = continues_last_turn(self.messages)
        fields["add_generation_prompt"] = not fields["continue_final_message"]
        fields["max_completion_tokens"] = self.max_tokens
        if self.stop_sequences is not None:
            fields["stop"] = self.stop_sequences
        fields["chat_template_kwargs"] = self._template_options
        if self.thinking is not None and self.thinking.display == "omitted":
            fields["include_reasoning"] = False
        if self.tools is not None:
            fields["tools"] = [tool.chat_form for tool in self.tools]
        if self.tool_choice is not None:
            fields |= self.tool_choice.chat_form
        if self.output_config is not None:
            fields["reasoning_effort"] = self.output_config.effort
            if self.output_config.format is not None:
                fields["response_format"] = self.output_config.format.chat_form
        self._set_chat(fields, own_names)
        return self

    @property
    def _template_options(self) -> dict[str, Any] | None:
        if self.thinking is None:
            return self.chat_template_kwargs
        return self.thinking.template_options | (self.chat_template_kwargs or {})
