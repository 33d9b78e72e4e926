"""Phrases: short runs of tokens that followed a context somewhere. Guesses, never answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_CONTEXT = 8
MAX_PHRASE_TOKENS = 64


class PhraseScope(StrEnum):
    """Which phrases a request reads and writes."""

    SHARED = "shared"  # those of its namespace, and its own text
    PRIVATE = "private"  # its own text and verdicts; nothing of it is shared
    OFF = "off"  # none at all


@dataclass(frozen=True, slots=True)
class Phrase:
    """`tokens` (1 to 64) that followed `context` (the 0 to 8 tokens right before them).

    `committed` tokens were emitted; others the target only predicted, on a branch that it then
    did not take.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    committed: bool = True
