"""Fields common to requests that generate: OpenAI's, vLLM's additional ones, `speculative`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from draftloop.logprobs import MAX_TOP_LOGPROBS
from draftloop.request import MAX_SEED
from orchestrator.gateway.body import Body, ListOf, ObjectOf, RequestBody
from orchestrator.gateway.forms import ResponseFormat, StructuredOutputs, without_older_names
from orchestrator.gateway.messages import TextPart

MAX_CHOICES = 128
MAX_INT = 2**31 - 1
MIN_SEED = -(2**63)

Count = Annotated[int, Field(ge=1, le=MAX_INT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_INT)]


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


class Sampling(RequestBody):
    """Fields that every route that generates takes, under the same names."""

    model: str | None = Field(None, description="name of the served model; may be left out")
    min_tokens: CountOrZero | None = Field(None, description="nothing ends the text before")
    temperature: float | None = Field(
        None, description="0 is greedy; the model's generation config, or else 1, without"
    )
    top_p: float | None = None
    stop: str | ListOf[str] | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = Field(
        None, description="the same seed gives the same text; negative ones are taken modulo 2^64"
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: ObjectOf[float] | None = Field(None, description="bias by token id")
    stream: bool | None = None
    user: str | None = Field(None, description="of no effect")
    safety_identifier: str | None = Field(None, description="of no effect")
    prompt_cache_key: str | None = Field(None, description="of no effect")
    prompt_cache_retention: str | None = Field(None, description="of no effect")
    prompt_cache_options: ObjectOf[Any] | None = Field(None, description="of no effect")
    metadata: ObjectOf[str] | None = Field(None, description="of no effect")
    service_tier: str | None = Field(None, description="of no effect")
    store: bool | None = Field(None, description="of no effect: nothing is kept")
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
    truncate_prompt_tokens: Count | None = Field(
        None, description="the last so many tokens of each prompt are all that is read of it"
    )
    structured_outputs: StructuredOutputs | None = None
    speculative: Speculative | None = None


class Generating(Sampling):
    """Fields that text completions and chat completions share."""

    max_tokens: Count | None = Field(None, description="most tokens; the server's default without")
    max_completion_tokens: Count | None = Field(None, description="the newer name of max_tokens")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="choices for each prompt; choice i uses seed + i"
    )
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    add_special_tokens: bool | None = Field(
        None, description="those that the tokenizer adds; true for a prompt, false for messages"
    )
    return_token_ids: bool | None = Field(
        None, description="true: token ids of prompt and output beside the text"
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        None, description="those of the prompt's tokens, and of so many likeliest beside each"
    )
    response_format: ResponseFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def _replace_older_names(cls, body: Any) -> Any:
        return without_older_names(body) if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _check_stream_fields(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidInput("stream_options", "must only be given with stream: true", False)
        if self.prompt_logprobs is not None and self.stream:
            rule = "must not be given with stream: true"
            raise InvalidInput("prompt_logprobs", rule, self.prompt_logprobs)
        return self

    @model_validator(mode="after")
    def _check_limits_agree(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            newer = self.max_completion_tokens
            rule = f"must equal max_completion_tokens, {newer}, if both are given"
            raise InvalidInput("max_tokens", rule, self.max_tokens)
        return self

    @model_validator(mode="after")
    def _check_single_form(self) -> Self:
        if self.structured_outputs is not None and self._wants_json:
            rule = "must not be given with a response_format"
            raise InvalidInput("structured_outputs", rule, "both")
        return self

    @property
    def prompt_only(self) -> bool:
        """Whether nothing is to be generated and the answer is the prompt alone."""
        return self.max_tokens == 0

    @property
    def form_field(self) -> str | None:
        """Name of the field that sets the answer's form; None if there is none."""
        if self.structured_outputs is not None:
            return "structured_outputs"
        return "response_format" if self._wants_json else None

    @property
    def _wants_json(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"
