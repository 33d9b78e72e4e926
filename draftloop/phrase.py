"""Phrases: short runs of tokens that followed a context somewhere; proposals, never answers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

MAX_CONTEXT = 8
MAX_PHRASE_TOKENS = 64


class PhraseScope(StrEnum):
    """Which phrases a request reads and writes."""

    SHARED = "shared"  # uses its own text; reads and writes the phrases of its namespace
    READ_ONLY = "read_only"  # uses its own text; only reads the phrases of its namespace
    PRIVATE = "private"  # uses only its own text and verdicts; shares nothing
    OFF = "off"  # uses no phrases

    @property
    def reads(self) -> bool:
        """Whether the phrases of other requests are used."""
        return self in (PhraseScope.SHARED, PhraseScope.READ_ONLY)


@dataclass(frozen=True, slots=True)
class Phrase:
    """`tokens` (1 to 64) that followed `context` (the 0 to 8 tokens right before them).

    `committed`: whether the tokens were emitted. Otherwise the target only predicted them, on a
    branch that was rejected.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseAccess:
    """Whose phrases a request uses: those of one target model and one tenant, within `scope`.

    `origin` is the request's number in the phrase log.
    """

    scope: PhraseScope = PhraseScope.SHARED
    target_fingerprint: str = ""
    tenant: str = ""
    origin: int = 0

    def without_history(self) -> PhraseAccess:
        """The same access without the phrases of other requests."""
        if self.scope is PhraseScope.OFF:
            return self
        return dataclasses.replace(self, scope=PhraseScope.PRIVATE)
