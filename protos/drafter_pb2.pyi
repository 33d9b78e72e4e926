from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_END_UNSPECIFIED: _ClassVar[DraftEnd]
    DRAFT_END_NODES: _ClassVar[DraftEnd]
    DRAFT_END_DEPTH: _ClassVar[DraftEnd]
    DRAFT_END_DRAFT_COST: _ClassVar[DraftEnd]
    DRAFT_END_VERIFY_COST: _ClassVar[DraftEnd]
    DRAFT_END_TEXT: _ClassVar[DraftEnd]
DRAFT_END_UNSPECIFIED: DraftEnd
DRAFT_END_NODES: DraftEnd
DRAFT_END_DEPTH: DraftEnd
DRAFT_END_DRAFT_COST: DraftEnd
DRAFT_END_VERIFY_COST: DraftEnd
DRAFT_END_TEXT: DraftEnd

class DrafterInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterInfoResponse(_message.Message):
    __slots__ = ("model", "load")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    model: _speculation_pb2.ModelInfo
    load: _speculation_pb2.ServiceLoad
    def __init__(self, model: _Optional[_Union[_speculation_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_speculation_pb2.ServiceLoad, _Mapping]] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("open", "propose", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenDrafterSession
    propose: ProposeDraft
    close: CloseDrafterSession
    def __init__(self, open: _Optional[_Union[OpenDrafterSession, _Mapping]] = ..., propose: _Optional[_Union[ProposeDraft, _Mapping]] = ..., close: _Optional[_Union[CloseDrafterSession, _Mapping]] = ...) -> None: ...

class OpenDrafterSession(_message.Message):
    __slots__ = ("session_id", "vocabulary_fingerprint", "token_ids", "prompt_length", "sampling", "strategy", "phrases", "ouroboros", "opt_tree", "cascade", "prefix_group", "prefix_read_only", "stop_token_ids", "target_processor")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    OUROBOROS_FIELD_NUMBER: _ClassVar[int]
    OPT_TREE_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_GROUP_FIELD_NUMBER: _ClassVar[int]
    PREFIX_READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    vocabulary_fingerprint: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_length: int
    sampling: _speculation_pb2.SamplingParameters
    strategy: str
    phrases: PhraseAccess
    ouroboros: _speculation_pb2.OuroborosParameters
    opt_tree: _speculation_pb2.OptTreeParameters
    cascade: _speculation_pb2.CascadeParameters
    prefix_group: str
    prefix_read_only: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    target_processor: str
    def __init__(self, session_id: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_length: _Optional[int] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParameters, _Mapping]] = ..., strategy: _Optional[str] = ..., phrases: _Optional[_Union[PhraseAccess, _Mapping]] = ..., ouroboros: _Optional[_Union[_speculation_pb2.OuroborosParameters, _Mapping]] = ..., opt_tree: _Optional[_Union[_speculation_pb2.OptTreeParameters, _Mapping]] = ..., cascade: _Optional[_Union[_speculation_pb2.CascadeParameters, _Mapping]] = ..., prefix_group: _Optional[str] = ..., prefix_read_only: bool = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., target_processor: _Optional[str] = ...) -> None: ...

class PhraseAccess(_message.Message):
    __slots__ = ("scope", "target_fingerprint", "tenant", "origin")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    scope: _speculation_pb2.PhraseScope
    target_fingerprint: str
    tenant: str
    origin: int
    def __init__(self, scope: _Optional[_Union[_speculation_pb2.PhraseScope, str]] = ..., target_fingerprint: _Optional[str] = ..., tenant: _Optional[str] = ..., origin: _Optional[int] = ...) -> None: ...

class ProposeDraft(_message.Message):
    __slots__ = ("committed_length", "new_token_ids", "verdict", "max_nodes", "max_depth", "least_path_probability", "tokens_per_second", "offer")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    LEAST_PATH_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    new_token_ids: _containers.RepeatedScalarFieldContainer[int]
    verdict: _speculation_pb2.Verdict
    max_nodes: int
    max_depth: int
    least_path_probability: float
    tokens_per_second: float
    offer: _speculation_pb2.DraftTree
    def __init__(self, committed_length: _Optional[int] = ..., new_token_ids: _Optional[_Iterable[int]] = ..., verdict: _Optional[_Union[_speculation_pb2.Verdict, _Mapping]] = ..., max_nodes: _Optional[int] = ..., max_depth: _Optional[int] = ..., least_path_probability: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., offer: _Optional[_Union[_speculation_pb2.DraftTree, _Mapping]] = ...) -> None: ...

class CloseDrafterSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("committed_length", "draft", "timings", "proposed_nodes", "end", "load")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_NODES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    draft: _speculation_pb2.DraftTree
    timings: _speculation_pb2.ServiceTimings
    proposed_nodes: int
    end: DraftEnd
    load: _speculation_pb2.ServiceLoad
    def __init__(self, committed_length: _Optional[int] = ..., draft: _Optional[_Union[_speculation_pb2.DraftTree, _Mapping]] = ..., timings: _Optional[_Union[_speculation_pb2.ServiceTimings, _Mapping]] = ..., proposed_nodes: _Optional[int] = ..., end: _Optional[_Union[DraftEnd, str]] = ..., load: _Optional[_Union[_speculation_pb2.ServiceLoad, _Mapping]] = ...) -> None: ...
