from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifierInfoResponse(_message.Message):
    __slots__ = ("model", "load")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    model: _speculation_pb2.ModelInfo
    load: _speculation_pb2.ServiceLoad
    def __init__(self, model: _Optional[_Union[_speculation_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_speculation_pb2.ServiceLoad, _Mapping]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("open", "verify", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenVerifierSession
    verify: VerifyDraft
    close: CloseVerifierSession
    def __init__(self, open: _Optional[_Union[OpenVerifierSession, _Mapping]] = ..., verify: _Optional[_Union[VerifyDraft, _Mapping]] = ..., close: _Optional[_Union[CloseVerifierSession, _Mapping]] = ...) -> None: ...

class OpenVerifierSession(_message.Message):
    __slots__ = ("session_id", "vocabulary_fingerprint", "token_ids", "prompt_length", "sampling", "stop_token_ids", "successors", "logprobs", "model_fingerprint", "prefix_group", "prefix_read_only", "prompt_logprobs", "dtype", "quantization")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUCCESSORS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_GROUP_FIELD_NUMBER: _ClassVar[int]
    PREFIX_READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    vocabulary_fingerprint: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_length: int
    sampling: _speculation_pb2.SamplingParameters
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    successors: int
    logprobs: int
    model_fingerprint: str
    prefix_group: str
    prefix_read_only: bool
    prompt_logprobs: int
    dtype: str
    quantization: str
    def __init__(self, session_id: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_length: _Optional[int] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParameters, _Mapping]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., successors: _Optional[int] = ..., logprobs: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., prefix_group: _Optional[str] = ..., prefix_read_only: bool = ..., prompt_logprobs: _Optional[int] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ...) -> None: ...

class VerifyDraft(_message.Message):
    __slots__ = ("committed_length", "draft")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    draft: _speculation_pb2.DraftTree
    def __init__(self, committed_length: _Optional[int] = ..., draft: _Optional[_Union[_speculation_pb2.DraftTree, _Mapping]] = ...) -> None: ...

class CloseVerifierSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("committed_length", "verdict", "timings", "load", "prompt_logprobs")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    verdict: _speculation_pb2.Verdict
    timings: _speculation_pb2.ServiceTimings
    load: _speculation_pb2.ServiceLoad
    prompt_logprobs: _speculation_pb2.PromptLogprobs
    def __init__(self, committed_length: _Optional[int] = ..., verdict: _Optional[_Union[_speculation_pb2.Verdict, _Mapping]] = ..., timings: _Optional[_Union[_speculation_pb2.ServiceTimings, _Mapping]] = ..., load: _Optional[_Union[_speculation_pb2.ServiceLoad, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_speculation_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...
