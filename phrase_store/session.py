"""The phrases of one request: its own text as it grows, and those of its namespace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftTree, Verdict
from phrase_store.harvest import harvest
from phrase_store.index import Grown, PhraseIndex, correction_of, grow

# Up to 8 entries of 16 bytes a token, in a table that is half full at the end.
BYTES_PER_TOKEN = 256
# Phrases of the request's own text before its table must evict.
LEAST_TOKENS = 1024


class SharedPhrases(Protocol):
    """What a request needs of its namespace (phrase_store/store.py)."""

    @property
    def index(self) -> PhraseIndex:
        """The phrases of all requests of the namespace that this process knows."""

    def learn(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Takes phrases into this process."""

    def publish(self, origin: int, phrases: Sequence[Phrase]) -> None:
        """Takes phrases into this process and, in the background, into all others."""


class PhraseSession:
    """`shared` is None for a request that neither reads nor writes the phrases of others.

    `harvests` tells whether predictions on rejected branches become phrases too; what was
    committed always does. `publishes` tells whether other processes are told.
    """

    def __init__(
        self,
        text: Sequence[int],
        expected_tokens: int,
        *,
        shared: SharedPhrases | None = None,
        origin: int = 0,
        harvests: bool = True,
        publishes: bool = False,
        stop_token_ids: Collection[int] = (),
    ) -> None:
        tokens = max(LEAST_TOKENS, len(text) + expected_tokens)
        self._own = PhraseIndex(max_bytes=tokens * BYTES_PER_TOKEN)
        self._own.extend((), text)
        self._shared = shared
        self._origin = origin
        self._harvests = harvests
        self._publishes = publishes
        self._stop_token_ids = stop_token_ids
        self._calibration = Calibration()
        self._correction = correction_of(self._calibration)
        self._last = Grown(EMPTY_TREE, [])

    def propose(
        self, context: Sequence[int], budget: DraftBudget, *, most_leaves: int | None = None
    ) -> DraftTree:
        """The likeliest continuations of `context` within the budget, at most so many branches."""
        self._last = grow(
            context,
            budget,
            shared=self._shared.index if self._shared else None,
            own=self._own,
            correction=self._correction,
            most_leaves=most_leaves,
        )
        return self._last.tree

    def insert(self, phrases: Iterable[Phrase]) -> None:
        """Takes in phrases that nobody else is told of."""
        self._own.insert(phrases)

    def extend(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        """Takes in tokens that were committed after `context`."""
        self._own.extend(context[-MAX_CONTEXT:], token_ids)

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        """Harvests a verdict on a draft that followed `context`."""
        phrases = harvest(context[-MAX_CONTEXT:], draft, verdict, self._stop_token_ids)
        if not self._harvests:
            phrases = [phrase for phrase in phrases if phrase.committed]
        self._own.insert(phrase for phrase in phrases if not phrase.committed)
        if draft is self._last.tree and verdict.judges(draft):
            self._calibration.observe(draft, self._last.scores, verdict)
        if self._shared is None or not phrases:
            return
        if self._publishes:
            self._shared.publish(self._origin, phrases)
        else:
            self._shared.learn(self._origin, phrases)
