"""Phrases: short runs of tokens that followed a context somewhere. Guesses, never answers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

MAX_CONTEXT = 8
MAX_PHRASE_TOKENS = 64


class PhraseScope(StrEnum):
    """Which phrases a request reads and writes."""

    SHARED = "shared"  # those of its namespace, and its own text
    READ_ONLY = "read_only"  # those of its namespace and its own text; nothing of it is shared
    PRIVATE = "private"  # its own text and verdicts; nothing of it is shared
    OFF = "off"  # none at all

    @property
    def reads(self) -> bool:
        """Whether the phrases of others are used."""
        return self in (PhraseScope.SHARED, PhraseScope.READ_ONLY)


@dataclass(frozen=True, slots=True)
class Phrase:
    """`tokens` (1 to 64) that followed `context` (the 0 to 8 tokens right before them).

    `committed` tokens were emitted; others the target only predicted, on a branch that it then
    did not take.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseAccess:
    """Whose phrases a request uses: those of a target model's words, within a tenant.

    `origin` is the request's number in the phrase log.
    """

    scope: PhraseScope = PhraseScope.SHARED
    target_fingerprint: str = ""
    tenant: str = ""
    origin: int = 0

    def without_history(self) -> PhraseAccess:
        """The same without the phrases of others."""
        if self.scope is PhraseScope.OFF:
            return self
        return dataclasses.replace(self, scope=PhraseScope.PRIVATE)
