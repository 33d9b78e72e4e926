"""Models of answers, for the OpenAPI document only: answers are written without them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from orchestrator.gateway.tools.schemas import Call


class ErrorDetail(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """OpenAI's shape of an error."""

    error: ErrorDetail


class AnthropicErrorDetail(BaseModel):
    """What was wrong."""

    type: str
    message: str
    details: dict[str, Any] | None = Field(None, description="of what the client can do without")


class AnthropicErrorAnswer(BaseModel):
    """Anthropic's shape of an error."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class PromptTokensDetails(BaseModel):
    """Prompt tokens whose keys and values another request had already computed."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Tokens of reasoning: those between its marks."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Numbers of tokens of prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = Field(
        None, description="of chats whose model may reason"
    )


class Answer(BaseModel):
    """Fields that text completions and chat completions have in common."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    metrics: dict[str, Any]


class Choice(BaseModel):
    """One continuation."""

    index: int
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None = Field(
        description="the stop text, or the token of stop_token_ids, that ended it"
    )


class CompletionChoice(Choice):
    """A choice of a text completion."""

    text: str


class CompletionAnswer(Answer):
    """`POST /v1/completions`."""

    choices: list[CompletionChoice]


class ChatMessage(BaseModel):
    """The assistant's turn."""

    role: str
    content: str | None
    refusal: str | None
    tool_calls: list[Call] | None = None


class ChatChoice(Choice):
    """A choice of a chat completion."""

    message: ChatMessage


class ChatAnswer(Answer):
    """`POST /v1/chat/completions`."""

    choices: list[ChatChoice]


Responses = dict[int | str, dict[str, Any]]


def _refusals(model: type[BaseModel]) -> Responses:
    return {
        "4XX": {"model": model, "description": "the request's fault"},
        "5XX": {"model": model, "description": "the server's, or a part that it needs"},
    }


def _answers(model: type[BaseModel]) -> Responses:
    events = {"schema": {"type": "string", "description": "server-sent events"}}
    return {200: {"model": model, "content": {"text/event-stream": events}}}


class InputTokensDetails(PromptTokensDetails):
    """Cached input tokens. How many this request adds to the cache is not reported (always 0)."""

    cache_write_tokens: int


class ResponseUsage(BaseModel):
    """Tokens of input and output."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: CompletionTokensDetails
    total_tokens: int


class ResponseAnswer(BaseModel):
    """`POST /v1/responses`; repeats the request's own fields."""

    id: str
    object: str
    created_at: int
    model: str
    status: str
    incomplete_details: dict[str, str] | None
    output: list[dict[str, Any]] = Field(
        description="items of type message, reasoning, function_call"
    )
    usage: ResponseUsage
    metrics: dict[str, Any]


class OutputTokensDetails(BaseModel):
    """Tokens of thinking."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Numbers of tokens: of input without those found in the cache, and of output."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = Field(
        None, description="of models that may reason"
    )


class MessageAnswer(BaseModel):
    """`POST /v1/messages`."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]] = Field(description="blocks of type text, thinking, tool_use")
    stop_reason: str
    stop_sequence: str | None
    usage: MessageUsage
    metrics: dict[str, Any]


REFUSALS = _refusals(ErrorAnswer)
ANTHROPIC_REFUSALS = _refusals(AnthropicErrorAnswer)
ANSWERS = {
    "completion": _answers(CompletionAnswer),
    "chat": _answers(ChatAnswer),
    "response": _answers(ResponseAnswer),
    "message": _answers(MessageAnswer) | ANTHROPIC_REFUSALS,
}
