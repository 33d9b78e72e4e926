"""The Python client: `Client` for threads, `AsyncClient` for asyncio, over one core.

It needs only a plain installation: no torch, no Redis, no models.
"""

from draftloop.client.async_client import DEFAULT_ADDRESS, AsyncClient
from draftloop.client.async_stream import AsyncStream
from draftloop.client.options import Options, Prompt
from draftloop.client.retry import DEFAULT_RETRY, NO_RETRY, Retry
from draftloop.client.sync_client import Client, Stream
from draftloop.completion import (
    Completion,
    DeploymentInfo,
    Figures,
    Piece,
    SourceFigures,
    Summary,
    Timings,
    Usage,
)
from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    Forbidden,
    InvalidInput,
    Mismatch,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from draftloop.grammar import Grammar
from draftloop.logprobs import PromptLogprobs, TokenLogprobs
from draftloop.phrase import PhraseScope
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.speculation import Speculation
from draftloop.tls import ClientTls
from draftloop.tree import TokenSource

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_RETRY",
    "NO_RETRY",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ClientTls",
    "Completion",
    "DeadlineExceeded",
    "DeploymentInfo",
    "DraftloopError",
    "Figures",
    "Forbidden",
    "GenerationParameters",
    "Grammar",
    "InvalidInput",
    "Mismatch",
    "Options",
    "Overloaded",
    "PhraseScope",
    "Piece",
    "Prompt",
    "PromptLogprobs",
    "Retry",
    "SamplingParameters",
    "SourceFigures",
    "Speculation",
    "Stream",
    "Summary",
    "Timings",
    "TokenLogprobs",
    "TokenSource",
    "Unauthenticated",
    "Unavailable",
    "Usage",
]
