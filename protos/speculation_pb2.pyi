from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_SOURCE_UNSPECIFIED: _ClassVar[TokenSource]
    TOKEN_SOURCE_TARGET: _ClassVar[TokenSource]
    TOKEN_SOURCE_DRAFT_MODEL: _ClassVar[TokenSource]
    TOKEN_SOURCE_PROMPT_LOOKUP: _ClassVar[TokenSource]
    TOKEN_SOURCE_PHRASE: _ClassVar[TokenSource]
    TOKEN_SOURCE_LOOKAHEAD: _ClassVar[TokenSource]
    TOKEN_SOURCE_RECYCLED: _ClassVar[TokenSource]

class PhraseScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHRASE_SCOPE_UNSPECIFIED: _ClassVar[PhraseScope]
    PHRASE_SCOPE_SHARED: _ClassVar[PhraseScope]
    PHRASE_SCOPE_PRIVATE: _ClassVar[PhraseScope]
    PHRASE_SCOPE_OFF: _ClassVar[PhraseScope]
    PHRASE_SCOPE_READ_ONLY: _ClassVar[PhraseScope]
TOKEN_SOURCE_UNSPECIFIED: TokenSource
TOKEN_SOURCE_TARGET: TokenSource
TOKEN_SOURCE_DRAFT_MODEL: TokenSource
TOKEN_SOURCE_PROMPT_LOOKUP: TokenSource
TOKEN_SOURCE_PHRASE: TokenSource
TOKEN_SOURCE_LOOKAHEAD: TokenSource
TOKEN_SOURCE_RECYCLED: TokenSource
PHRASE_SCOPE_UNSPECIFIED: PhraseScope
PHRASE_SCOPE_SHARED: PhraseScope
PHRASE_SCOPE_PRIVATE: PhraseScope
PHRASE_SCOPE_OFF: PhraseScope
PHRASE_SCOPE_READ_ONLY: PhraseScope

class DraftTree(_message.Message):
    __slots__ = ("token_ids", "parents", "estimates", "sources")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    estimates: _containers.RepeatedScalarFieldContainer[float]
    sources: _containers.RepeatedScalarFieldContainer[TokenSource]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., estimates: _Optional[_Iterable[float]] = ..., sources: _Optional[_Iterable[_Union[TokenSource, str]]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("accepted_nodes", "emitted_token_ids", "root_prediction", "node_predictions", "stopped", "successor_ids", "logprobs")
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROOT_PREDICTION_FIELD_NUMBER: _ClassVar[int]
    NODE_PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    accepted_nodes: _containers.RepeatedScalarFieldContainer[int]
    emitted_token_ids: _containers.RepeatedScalarFieldContainer[int]
    root_prediction: int
    node_predictions: _containers.RepeatedScalarFieldContainer[int]
    stopped: bool
    successor_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, accepted_nodes: _Optional[_Iterable[int]] = ..., emitted_token_ids: _Optional[_Iterable[int]] = ..., root_prediction: _Optional[int] = ..., node_predictions: _Optional[_Iterable[int]] = ..., stopped: bool = ..., successor_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_id", "logprob", "top_token_ids", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("count", "logprobs", "ranks", "top_token_ids", "top_logprobs")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    count: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, count: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class LookaheadParameters(_message.Message):
    __slots__ = ("window", "ngram", "candidates", "pool_size")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NGRAM_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    POOL_SIZE_FIELD_NUMBER: _ClassVar[int]
    window: int
    ngram: int
    candidates: int
    pool_size: int
    def __init__(self, window: _Optional[int] = ..., ngram: _Optional[int] = ..., candidates: _Optional[int] = ..., pool_size: _Optional[int] = ...) -> None: ...

class OuroborosParameters(_message.Message):
    __slots__ = ("draft_by_phrases", "lengthen", "harvest", "history", "lengthening_phrases", "lookahead", "phrases_alone")
    DRAFT_BY_PHRASES_FIELD_NUMBER: _ClassVar[int]
    LENGTHEN_FIELD_NUMBER: _ClassVar[int]
    HARVEST_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LENGTHENING_PHRASES_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    PHRASES_ALONE_FIELD_NUMBER: _ClassVar[int]
    draft_by_phrases: bool
    lengthen: bool
    harvest: bool
    history: bool
    lengthening_phrases: int
    lookahead: LookaheadParameters
    phrases_alone: bool
    def __init__(self, draft_by_phrases: bool = ..., lengthen: bool = ..., harvest: bool = ..., history: bool = ..., lengthening_phrases: _Optional[int] = ..., lookahead: _Optional[_Union[LookaheadParameters, _Mapping]] = ..., phrases_alone: bool = ...) -> None: ...

class OptTreeParameters(_message.Message):
    __slots__ = ("nodes", "delta", "depth")
    NODES_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    delta: float
    depth: int
    def __init__(self, nodes: _Optional[int] = ..., delta: _Optional[float] = ..., depth: _Optional[int] = ...) -> None: ...

class CascadeRow(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class CascadeParameters(_message.Message):
    __slots__ = ("matrix", "leniency")
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    LENIENCY_FIELD_NUMBER: _ClassVar[int]
    matrix: _containers.RepeatedCompositeFieldContainer[CascadeRow]
    leniency: float
    def __init__(self, matrix: _Optional[_Iterable[_Union[CascadeRow, _Mapping]]] = ..., leniency: _Optional[float] = ...) -> None: ...

class FusedParameters(_message.Message):
    __slots__ = ("draft_model", "phrases", "own_text", "recycling")
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    OWN_TEXT_FIELD_NUMBER: _ClassVar[int]
    RECYCLING_FIELD_NUMBER: _ClassVar[int]
    draft_model: bool
    phrases: bool
    own_text: bool
    recycling: bool
    def __init__(self, draft_model: bool = ..., phrases: bool = ..., own_text: bool = ..., recycling: bool = ...) -> None: ...

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "grammar", "bans")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    BANS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    grammar: Grammar
    bans: Bans
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., bans: _Optional[_Union[Bans, _Mapping]] = ...) -> None: ...

class Bans(_message.Message):
    __slots__ = ("allowed_token_ids", "sequences", "min_tokens", "ends")
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    min_tokens: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, allowed_token_ids: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., min_tokens: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("json_schema", "regex", "choice", "grammar")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    choice: str
    grammar: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[str] = ..., grammar: _Optional[str] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("protocol_version", "model_name", "model_fingerprint", "vocabulary_fingerprint", "vocabulary_size", "context_length", "parameters", "dtype", "device", "cost_inflation", "max_sessions", "max_draft_nodes", "strategies", "stop_token_ids", "cost_curve", "instance_id", "quantization", "prefix_caching", "tensor_parallel_size", "processor")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COST_INFLATION_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_NODES_FIELD_NUMBER: _ClassVar[int]
    STRATEGIES_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COST_CURVE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_name: str
    model_fingerprint: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    context_length: int
    parameters: int
    dtype: str
    device: str
    cost_inflation: str
    max_sessions: int
    max_draft_nodes: int
    strategies: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cost_curve: _containers.RepeatedCompositeFieldContainer[CostPoint]
    instance_id: str
    quantization: str
    prefix_caching: bool
    tensor_parallel_size: int
    processor: str
    def __init__(self, protocol_version: _Optional[int] = ..., model_name: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., context_length: _Optional[int] = ..., parameters: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., cost_inflation: _Optional[str] = ..., max_sessions: _Optional[int] = ..., max_draft_nodes: _Optional[int] = ..., strategies: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., cost_curve: _Optional[_Iterable[_Union[CostPoint, _Mapping]]] = ..., instance_id: _Optional[str] = ..., quantization: _Optional[str] = ..., prefix_caching: bool = ..., tensor_parallel_size: _Optional[int] = ..., processor: _Optional[str] = ...) -> None: ...

class CostPoint(_message.Message):
    __slots__ = ("tokens", "forward_ns", "context", "batch")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    forward_ns: int
    context: int
    batch: int
    def __init__(self, tokens: _Optional[int] = ..., forward_ns: _Optional[int] = ..., context: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class ServiceTimings(_message.Message):
    __slots__ = ("service_ns", "forward_ns", "queue_ns", "forwards", "batch_size", "batch_rows", "waiting", "prompt_rows", "prompts", "prompts_ns", "cached_tokens")
    SERVICE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_NS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    service_ns: int
    forward_ns: int
    queue_ns: int
    forwards: int
    batch_size: int
    batch_rows: int
    waiting: int
    prompt_rows: int
    prompts: int
    prompts_ns: int
    cached_tokens: int
    def __init__(self, service_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., queue_ns: _Optional[int] = ..., forwards: _Optional[int] = ..., batch_size: _Optional[int] = ..., batch_rows: _Optional[int] = ..., waiting: _Optional[int] = ..., prompt_rows: _Optional[int] = ..., prompts: _Optional[int] = ..., prompts_ns: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class ServiceLoad(_message.Message):
    __slots__ = ("running_sessions", "waiting_sessions", "answer_ns", "forwards")
    RUNNING_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    running_sessions: int
    waiting_sessions: int
    answer_ns: int
    forwards: int
    def __init__(self, running_sessions: _Optional[int] = ..., waiting_sessions: _Optional[int] = ..., answer_ns: _Optional[int] = ..., forwards: _Optional[int] = ...) -> None: ...
