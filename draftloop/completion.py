"""Results of a generation for clients: its text, in pieces or whole, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftloop.logprobs import PromptLogprobs, TokenLogprobs
from draftloop.model_info import ModelInfo
from draftloop.phrase_store_info import PhraseStoreInfo
from draftloop.tree import TokenSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """Nodes from one source: proposed, drafted (sent to the verifier), and accepted.

    `expected` is the number of accepted nodes that their estimates predicted.
    """

    source: TokenSource
    proposed: int
    drafted: int
    accepted: int
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Number of tokens in and out; `cached_tokens` of the prompt had been computed before."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Statistics of one request's drafts.

    `accepted_per_position[i]` counts accepted nodes of depth i + 1. `ends` counts rounds by the
    reason for which their draft ended.
    """

    strategy: str
    rounds: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    tokens_per_round: float
    draft_forwards: int
    fallback_rounds: int
    reopened_sessions: int
    phrase_rounds: int
    sources: tuple[SourceFigures, ...]
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the server's time went, in nanoseconds; see GenerationTimings in the proto."""

    time_to_first_token_ns: int
    decode_ns: int
    draft_ns: int
    verify_ns: int
    draft_forward_ns: int
    verify_forward_ns: int
    wire_ns: int
    overhead_per_round_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a generation ended and what it cost.

    `finish_reason` is "stop" or "length". Repeating the request with `seed` gives the same tokens.
    """

    request_id: str
    finish_reason: str
    seed: int
    usage: Usage
    figures: Figures
    timings: Timings

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, per second of decoding."""
        seconds = self.timings.decode_ns / 1e9
        return (self.usage.completion_tokens - 1) / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Newly committed tokens, where each came from, and their text.

    The text is empty while a character or a possible stop text is incomplete. `logprobs` has one
    entry per token if the request asked for them. `prompt_logprobs`, if asked for, come with the
    first piece.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    sources: tuple[TokenSource, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Summary):
    """A whole generation: all of its pieces joined, and its summary."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentInfo:
    """A deployment's description of itself: version, models, strategies and limits."""

    version: str
    verifier: ModelInfo
    drafter: ModelInfo | None
    strategies: tuple[str, ...]
    default_strategy: str
    default_max_tokens: int
    phrases: PhraseStoreInfo | None = None
