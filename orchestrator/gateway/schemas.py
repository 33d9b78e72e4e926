"""The bodies that clients may send to each route.

Types are strict, unknown fields are errors, null means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WrapValidator, model_validator

from draftloop.errors import InvalidInput
from draftloop.logprobs import MAX_TOP_LOGPROBS
from orchestrator.gateway.body import ListOf, RequestBody
from orchestrator.gateway.generating import Count, CountOrZero, Generating
from orchestrator.gateway.messages import Message
from orchestrator.gateway.tools.offer import require_tools
from orchestrator.gateway.tools.schemas import (
    MAX_TOOLS,
    AllowedTools,
    PlainChoice,
    Tool,
    ToolChoice,
)
from orchestrator.gateway.unsupported import CHAT, COMPLETION, without_unsupported


def _prompt(value: Any, _read: Any) -> Any:
    """Validates a prompt in one pass; the union's four branches would each report every entry."""
    match value:
        case str() | [str(), *_] if not isinstance(value, list) or all(
            isinstance(entry, str) for entry in value
        ):
            return value
        case [] | [[], *_]:
            raise InvalidInput("prompt", "must not be empty", value)
        case [list(), *_]:
            for index, entry in enumerate(value):
                _require_ids(f"prompt[{index}]", entry)
            return value
        case [int(), *_]:
            _require_ids("prompt", value)
            return value
    rule = "must be a string, strings, token ids, or lists of token ids"
    raise InvalidInput("prompt", rule, value)


def _require_ids(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise InvalidInput(name, "must be a list of token ids, as the entries before it", value)
    if {*map(type, value)} <= {int}:
        return
    for index, entry in enumerate(value):
        if type(entry) is not int:
            raise InvalidInput(f"{name}[{index}]", "must be a token id", entry)


Prompt = Annotated[str | list[str] | list[int] | list[list[int]], WrapValidator(_prompt)]


class CompletionBody(Generating):
    """`POST /v1/completions`."""

    prompt: Prompt
    best_of: Annotated[int, Field(ge=1)] | None = Field(None, description="only equal to n")
    max_tokens: CountOrZero | None = Field(
        None, description="most tokens; the server's default without; 0 with echo: the prompt alone"
    )
    echo: bool | None = Field(
        None, description="the prompt before the text; with logprobs, those of its tokens too"
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_unsupported(cls, body: Any) -> Any:
        return without_unsupported(body, COMPLETION)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidInput("best_of", f"must equal n, which is {self.n or 1}", self.best_of)
        if self.prompt_only and not self.echo:
            raise InvalidInput("max_tokens", "must be at least 1 without echo: true", 0)
        return self


TemplateOptions = Annotated[
    dict[str, Any],
    Field(description="what the model's chat template knows besides, such as `enable_thinking`"),
]

Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"],
    Field(description="of no effect where the model's chat template takes none"),
]

Verbosity = Annotated[
    Literal["low", "medium", "high"],
    Field(description="of no effect: templates have no word for how much to say"),
]


def _none_if_unlimited(limit: Any) -> Any:
    """None for -1, by which clients of llama.cpp and LM Studio say that they set no limit."""
    return None if type(limit) is int and limit == -1 else limit


ChatLimit = Annotated[Count | None, BeforeValidator(_none_if_unlimited)]
NO_LIMIT = "-1 names none: the server's default, or else the room in the context"

Tools = Annotated[ListOf[Tool], Field(max_length=MAX_TOOLS, description="what may be called")]


class ChatBody(Generating):
    """`POST /v1/chat/completions`."""

    messages: Annotated[ListOf[Message], Field(min_length=1)]
    max_tokens: ChatLimit = Field(None, description=f"most tokens; {NO_LIMIT}")
    max_completion_tokens: ChatLimit = Field(
        None, description=f"the newer name of max_tokens; {NO_LIMIT}"
    )
    add_generation_prompt: bool | None = Field(
        None, description="whether the prompt ends with the opening of an answer; true without"
    )
    continue_final_message: bool | None = Field(
        None, description="true: the prompt ends with the last message, which the answer goes on"
    )
    chat_template_kwargs: TemplateOptions | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(
        None, description="auto without: the model calls, or answers"
    )
    parallel_tool_calls: bool | None = Field(
        None, description="false: an answer has one call at most"
    )
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    include_reasoning: bool | None = Field(
        None, description="false: the reasoning is left out of what is sent"
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_unsupported(cls, body: Any) -> Any:
        return without_unsupported(body, CHAT)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise InvalidInput(
                "top_logprobs", "must only be given with logprobs: true", self.top_logprobs
            )
        return self

    @model_validator(mode="after")
    def _check_prompt_end(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            rule = "must not be true with add_generation_prompt: true"
            raise InvalidInput("continue_final_message", rule, True)
        return self

    @property
    def form_field(self) -> str | None:
        """Name of the field that sets the answer's form; None if there is none."""
        form = super().form_field
        calls = self.can_call_tools and (form is None or self.choice != "auto")
        return "tools" if calls else form

    @property
    def choice(self) -> PlainChoice:
        """Which of the offered tools must be called, if any; allowed tools give only their mode."""
        choice = self.tool_choice or "auto"
        return choice.allowed_tools.mode if isinstance(choice, AllowedTools) else choice

    @property
    def offered(self) -> list[Tool]:
        """The tools that may be called unless `choice` is none: all, or those that are allowed."""
        if not isinstance(self.tool_choice, AllowedTools):
            return self.tools or []
        names = {tool.function.name for tool in self.tool_choice.allowed_tools.tools}
        return [tool for tool in self.tools or () if tool.function.name in names]

    @property
    def can_call_tools(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.offered) and self.choice != "none"

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        require_tools(self.tools, self.tool_choice)
        return self


class TokenizeBody(RequestBody):
    """`POST /tokenize`: a text, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[ListOf[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = Field(
        None, description="those that the tokenizer adds; true for a prompt, false for messages"
    )
    add_generation_prompt: bool | None = Field(None, description="true without")
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_prompt_or_messages(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "none" if self.prompt is None else "both"
            raise InvalidInput("prompt", "must be given, or messages instead of it", given)
        return self

    @property
    def choice(self) -> PlainChoice:
        """Always auto: a body to tokenize has no choice, so that its prompt shows all tools."""
        return "auto"

    @property
    def offered(self) -> list[Tool]:
        """The tools that the prompt shows."""
        return self.tools or []


class DetokenizeBody(RequestBody):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: ListOf[int]
