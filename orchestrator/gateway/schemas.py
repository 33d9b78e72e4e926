"""What an HTTP client may send: OpenAI's fields, vLLM's further ones, and `speculative`.

Types are strict, unknown fields are errors, null means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, WrapValidator, model_validator

from draftloop.errors import InvalidInput
from draftloop.logprobs import MOST_TOP_LOGPROBS
from draftloop.request import MAX_SEED
from orchestrator.gateway.body import Body, ListOf, ObjectOf, RequestBody
from orchestrator.gateway.messages import Message, TextPart
from orchestrator.gateway.tools.offer import require_tools
from orchestrator.gateway.tools.schemas import MOST_TOOLS, Tool, ToolChoice
from orchestrator.gateway.unsupported import CHAT, COMPLETION, without_unsupported

MOST_CHOICES = 128
MOST_INT = 2**31 - 1
LEAST_SEED = -(2**63)

Count = Annotated[int, Field(ge=1, le=MOST_INT)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST_INT)]


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = Field(None, description="a last chunk with the usage")
    continuous_usage_stats: bool | None = Field(
        None, description="vLLM's: the usage so far in every chunk, where there is a last one"
    )
    include_obfuscation: Literal[False] | None = Field(None, description="there is none")


class Speculative(Body):
    """How the answer is drafted. None of it changes the answer."""

    strategy: str | None = Field(None, description="one of the strategies of the server")
    max_draft_tokens: Count | None = Field(None, description="fixed size of drafts")
    phrases: Literal["shared", "read_only", "private", "off"] | None = Field(
        None, description="which phrases are read and written"
    )
    trace: bool | None = Field(
        None, description="with every chunk the tokens' sources and the draft tree of its round"
    )


class Prediction(Body):
    """OpenAI's predicted output: text that the answer may resemble."""

    type: Literal["content"]
    content: str | ListOf[TextPart]


class JsonSchema(Body):
    """OpenAI's `response_format.json_schema`."""

    name: str | None = Field(None, description="of no effect")
    description: str | None = Field(None, description="of no effect")
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = Field(None, description="of no effect: the schema always holds")


class ResponseFormat(Body):
    """OpenAI's, for an answer that is JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            rule = "must be given with type json_schema, and with no other"
            raise InvalidInput("response_format.json_schema", rule, f"type {self.type}")
        return self


class StructuredOutputs(Body):
    """vLLM's: one of these."""

    json_: str | dict[str, Any] | bool | None = Field(
        None, alias="json", description="JSON Schema, as an object or as text"
    )
    json_object: Literal[True] | None = Field(None, description="any JSON object")
    regex: str | None = Field(None, description="for the whole answer; no look-around")
    choice: Annotated[ListOf[str], Field(min_length=1)] | None = None
    grammar: str | None = Field(None, description="Lark's notation, or llama.cpp's (GBNF)")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if len(given := self.model_dump(by_alias=True, exclude_none=True)) != 1:
            rule = "must have one of json, json_object, regex, choice, grammar"
            raise InvalidInput("structured_outputs", rule, ", ".join(given) or "none")
        return self


class Generating(RequestBody):
    """What both kinds of completion share."""

    model: str | None = Field(None, description="name of the served model; may be left out")
    max_tokens: Count | None = Field(None, description="most tokens; the server's default without")
    min_tokens: CountOrZero | None = Field(None, description="nothing ends the text before")
    temperature: float | None = Field(
        None, description="0 is greedy; the model's generation config, or else 1, without"
    )
    top_p: float | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = Field(
        None, description="choices for each prompt; choice i uses seed + i"
    )
    stop: str | ListOf[str] | None = None
    seed: Annotated[int, Field(ge=LEAST_SEED, le=MAX_SEED)] | None = Field(
        None, description="the same seed gives the same text; negative ones are taken modulo 2^64"
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: ObjectOf[float] | None = Field(None, description="bias by token id")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="of no effect")
    safety_identifier: str | None = Field(None, description="of no effect")
    prompt_cache_key: str | None = Field(None, description="of no effect")
    prompt_cache_retention: str | None = Field(None, description="of no effect")
    metadata: ObjectOf[str] | None = Field(None, description="of no effect")
    prediction: Prediction | None = None
    cache_salt: str | None = Field(
        None, description="a beginning is shared with prompts of the same salt only"
    )
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="0 and -1 are off")
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: ListOf[int] | None = None
    allowed_token_ids: Annotated[ListOf[int], Field(min_length=1)] | None = Field(
        None, description="the only tokens that may come"
    )
    bad_words: ListOf[str] | None = Field(None, description="texts that the answer does not have")
    skip_special_tokens: bool | None = Field(
        None, description="false: the text names special tokens; true without"
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="true: the text ends with what stopped it"
    )
    add_special_tokens: bool | None = Field(
        None, description="those that the tokenizer adds; true for a prompt, false for messages"
    )
    truncate_prompt_tokens: Count | None = Field(
        None, description="the last so many tokens of each prompt are all that is read of it"
    )
    return_token_ids: bool | None = Field(
        None, description="true: token ids of prompt and output beside the text"
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = Field(
        None, description="those of the prompt's tokens, and of so many likeliest beside each"
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    speculative: Speculative | None = None

    @model_validator(mode="after")
    def _whole_or_streamed(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidInput("stream_options", "must only be given with stream: true", False)
        if self.prompt_logprobs is not None and self.stream:
            rule = "must not be given with stream: true"
            raise InvalidInput("prompt_logprobs", rule, self.prompt_logprobs)
        return self

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.structured_outputs is not None and self._wants_json:
            rule = "must not be given with a response_format"
            raise InvalidInput("structured_outputs", rule, "both")
        return self

    @property
    def prompt_alone(self) -> bool:
        """Whether nothing is to be generated."""
        return self.max_tokens == 0

    @property
    def form_field(self) -> str | None:
        """The field that says what the answer must look like."""
        if self.structured_outputs is not None:
            return "structured_outputs"
        return "response_format" if self._wants_json else None

    @property
    def _wants_json(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"


def _prompt(value: Any, _read: Any) -> Any:
    """One look instead of four branches that each complain about every entry."""
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
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, body: Any) -> Any:
        return without_unsupported(body, COMPLETION)

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidInput("best_of", f"must equal n, which is {self.n or 1}", self.best_of)
        if self.prompt_alone and not self.echo:
            raise InvalidInput("max_tokens", "must be at least 1 without echo: true", 0)
        return self


TemplateOptions = Annotated[
    dict[str, Any],
    Field(description="what the model's chat template knows besides, such as `enable_thinking`"),
]

Tools = Annotated[ListOf[Tool], Field(max_length=MOST_TOOLS, description="what may be called")]


class ChatBody(Generating):
    """`POST /v1/chat/completions`."""

    messages: Annotated[ListOf[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = Field(None, description="the newer name of max_tokens")
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
        None, description="false: a required call is the only one"
    )
    include_reasoning: bool | None = Field(
        None, description="false: the reasoning is left out of what is sent"
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, body: Any) -> Any:
        return without_unsupported(body, CHAT)

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidInput(
                "top_logprobs", "must only be given with logprobs: true", self.top_logprobs
            )
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            rule = (
                f"must equal max_completion_tokens, {self.max_completion_tokens}, if both are given"
            )
            raise InvalidInput("max_tokens", rule, self.max_tokens)
        return self

    @model_validator(mode="after")
    def _one_end_of_the_prompt(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            rule = "must not be true with add_generation_prompt: true"
            raise InvalidInput("continue_final_message", rule, True)
        return self

    @property
    def form_field(self) -> str | None:
        """The field that says what the answer must look like."""
        return "tools" if self.may_call else super().form_field

    @property
    def may_call(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    @model_validator(mode="after")
    def _tools_to_call(self) -> Self:
        require_tools(self.tools, self.tool_choice)
        form = super().form_field
        if self.may_call and form is not None:
            rule = "must not be given with tools that may be called"
            raise InvalidInput(form, rule, "both")
        return self


class TokenizeBody(RequestBody):
    """`POST /tokenize`: of a text, or of what the chat template makes of messages."""

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
    def _one_of_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "none" if self.prompt is None else "both"
            raise InvalidInput("prompt", "must be given, or messages instead of it", given)
        return self


class DetokenizeBody(RequestBody):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: ListOf[int]
