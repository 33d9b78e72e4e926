from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class GenerationParameters(_message.Message):
    __slots__ = ("text", "tokens", "sampling", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "speculation", "request_id", "tenant", "logprobs", "prediction", "min_tokens", "allowed_token_ids", "bad_words", "prompt_logprobs", "cache_salt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: TokenIds
    sampling: _speculation_pb2.SamplingParameters
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    speculation: SpeculationParameters
    request_id: str
    tenant: str
    logprobs: int
    prediction: str
    min_tokens: int
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    prompt_logprobs: int
    cache_salt: str
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParameters, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., speculation: _Optional[_Union[SpeculationParameters, _Mapping]] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., logprobs: _Optional[int] = ..., prediction: _Optional[str] = ..., min_tokens: _Optional[int] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., prompt_logprobs: _Optional[int] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SpeculationParameters(_message.Message):
    __slots__ = ("strategy", "max_draft_tokens", "phrases", "lookahead", "ouroboros", "opt_tree", "cascade", "fused")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    OUROBOROS_FIELD_NUMBER: _ClassVar[int]
    OPT_TREE_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    FUSED_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    max_draft_tokens: int
    phrases: _speculation_pb2.PhraseScope
    lookahead: _speculation_pb2.LookaheadParameters
    ouroboros: _speculation_pb2.OuroborosParameters
    opt_tree: _speculation_pb2.OptTreeParameters
    cascade: _speculation_pb2.CascadeParameters
    fused: _speculation_pb2.FusedParameters
    def __init__(self, strategy: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ..., phrases: _Optional[_Union[_speculation_pb2.PhraseScope, str]] = ..., lookahead: _Optional[_Union[_speculation_pb2.LookaheadParameters, _Mapping]] = ..., ouroboros: _Optional[_Union[_speculation_pb2.OuroborosParameters, _Mapping]] = ..., opt_tree: _Optional[_Union[_speculation_pb2.OptTreeParameters, _Mapping]] = ..., cascade: _Optional[_Union[_speculation_pb2.CascadeParameters, _Mapping]] = ..., fused: _Optional[_Union[_speculation_pb2.FusedParameters, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("parameters",)
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: GenerationParameters
    def __init__(self, parameters: _Optional[_Union[GenerationParameters, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("text", "token_ids", "sources", "summary", "logprobs", "prompt_logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[_speculation_pb2.TokenSource]
    summary: GenerationSummary
    logprobs: _containers.RepeatedCompositeFieldContainer[_speculation_pb2.TokenLogprobs]
    prompt_logprobs: _speculation_pb2.PromptLogprobs
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[_speculation_pb2.TokenSource, str]]] = ..., summary: _Optional[_Union[GenerationSummary, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[_speculation_pb2.TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Union[_speculation_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class GenerateOnceRequest(_message.Message):
    __slots__ = ("parameters",)
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: GenerationParameters
    def __init__(self, parameters: _Optional[_Union[GenerationParameters, _Mapping]] = ...) -> None: ...

class GenerateOnceResponse(_message.Message):
    __slots__ = ("text", "token_ids", "sources", "summary", "logprobs", "prompt_logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[_speculation_pb2.TokenSource]
    summary: GenerationSummary
    logprobs: _containers.RepeatedCompositeFieldContainer[_speculation_pb2.TokenLogprobs]
    prompt_logprobs: _speculation_pb2.PromptLogprobs
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[_speculation_pb2.TokenSource, str]]] = ..., summary: _Optional[_Union[GenerationSummary, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[_speculation_pb2.TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Union[_speculation_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class GenerationSummary(_message.Message):
    __slots__ = ("request_id", "finish_reason", "prompt_tokens", "output_tokens", "seed", "speculation", "timings", "cached_prompt_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    finish_reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    seed: int
    speculation: SpeculationFigures
    timings: GenerationTimings
    cached_prompt_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., speculation: _Optional[_Union[SpeculationFigures, _Mapping]] = ..., timings: _Optional[_Union[GenerationTimings, _Mapping]] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class SpeculationFigures(_message.Message):
    __slots__ = ("strategy", "rounds", "draft_tokens", "accepted_tokens", "accepted_tokens_per_position", "tokens_per_round", "draft_forwards", "fallback_rounds", "reopened_sessions", "phrase_rounds", "sources", "ends")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_ROUND_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    REOPENED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PHRASE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    rounds: int
    draft_tokens: int
    accepted_tokens: int
    accepted_tokens_per_position: _containers.RepeatedScalarFieldContainer[int]
    tokens_per_round: float
    draft_forwards: int
    fallback_rounds: int
    reopened_sessions: int
    phrase_rounds: int
    sources: _containers.RepeatedCompositeFieldContainer[SourceFigures]
    ends: _containers.RepeatedCompositeFieldContainer[EndFigures]
    def __init__(self, strategy: _Optional[str] = ..., rounds: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., accepted_tokens_per_position: _Optional[_Iterable[int]] = ..., tokens_per_round: _Optional[float] = ..., draft_forwards: _Optional[int] = ..., fallback_rounds: _Optional[int] = ..., reopened_sessions: _Optional[int] = ..., phrase_rounds: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceFigures, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[EndFigures, _Mapping]]] = ...) -> None: ...

class EndFigures(_message.Message):
    __slots__ = ("reason", "rounds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    rounds: int
    def __init__(self, reason: _Optional[str] = ..., rounds: _Optional[int] = ...) -> None: ...

class SourceFigures(_message.Message):
    __slots__ = ("source", "draft_tokens", "accepted_tokens", "proposed_tokens", "expected_tokens")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    source: _speculation_pb2.TokenSource
    draft_tokens: int
    accepted_tokens: int
    proposed_tokens: int
    expected_tokens: float
    def __init__(self, source: _Optional[_Union[_speculation_pb2.TokenSource, str]] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., proposed_tokens: _Optional[int] = ..., expected_tokens: _Optional[float] = ...) -> None: ...

class GenerationTimings(_message.Message):
    __slots__ = ("time_to_first_token_ns", "decode_ns", "draft_ns", "verify_ns", "draft_forward_ns", "verify_forward_ns", "wire_ns", "overhead_per_round_ns")
    TIME_TO_FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    WIRE_NS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_PER_ROUND_NS_FIELD_NUMBER: _ClassVar[int]
    time_to_first_token_ns: int
    decode_ns: int
    draft_ns: int
    verify_ns: int
    draft_forward_ns: int
    verify_forward_ns: int
    wire_ns: int
    overhead_per_round_ns: int
    def __init__(self, time_to_first_token_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., draft_ns: _Optional[int] = ..., verify_ns: _Optional[int] = ..., draft_forward_ns: _Optional[int] = ..., verify_forward_ns: _Optional[int] = ..., wire_ns: _Optional[int] = ..., overhead_per_round_ns: _Optional[int] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GenerationInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GenerationInfoResponse(_message.Message):
    __slots__ = ("version", "verifier", "drafter", "strategies", "default_strategy", "default_max_tokens", "phrases")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    STRATEGIES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    version: str
    verifier: _speculation_pb2.ModelInfo
    drafter: _speculation_pb2.ModelInfo
    strategies: _containers.RepeatedScalarFieldContainer[str]
    default_strategy: str
    default_max_tokens: int
    phrases: PhraseStoreInfo
    def __init__(self, version: _Optional[str] = ..., verifier: _Optional[_Union[_speculation_pb2.ModelInfo, _Mapping]] = ..., drafter: _Optional[_Union[_speculation_pb2.ModelInfo, _Mapping]] = ..., strategies: _Optional[_Iterable[str]] = ..., default_strategy: _Optional[str] = ..., default_max_tokens: _Optional[int] = ..., phrases: _Optional[_Union[PhraseStoreInfo, _Mapping]] = ...) -> None: ...

class PhraseStoreInfo(_message.Message):
    __slots__ = ("kind", "namespaces", "unreachable_namespaces", "replaying_namespaces", "most_namespaces", "records_read", "entries", "bytes", "most_namespace_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    REPLAYING_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    MOST_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_READ_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MOST_NAMESPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespaces: int
    unreachable_namespaces: int
    replaying_namespaces: int
    most_namespaces: int
    records_read: int
    entries: int
    bytes: int
    most_namespace_bytes: int
    def __init__(self, kind: _Optional[str] = ..., namespaces: _Optional[int] = ..., unreachable_namespaces: _Optional[int] = ..., replaying_namespaces: _Optional[int] = ..., most_namespaces: _Optional[int] = ..., records_read: _Optional[int] = ..., entries: _Optional[int] = ..., bytes: _Optional[int] = ..., most_namespace_bytes: _Optional[int] = ...) -> None: ...
