"""Messages to the other ranks of a split model, so that all ranks do the same.

Rank 0 holds the sessions and decides; the others know only rows of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from draftloop.runtime.forward import Batch
    from draftloop.runtime.model import LanguageModel


class Order(Protocol):
    """An operation for another rank; can be pickled."""

    def carry_out(self, model: LanguageModel) -> None:
        """Executes it on the part of the model that this rank holds."""


class Lead(Protocol):
    """Passes the leader's operations on to the other ranks."""

    def send(self, order: Order) -> None:
        """Makes the other ranks do what this one is about to do, in the order of the calls."""

    def handle_failure(self, error: Exception) -> None:
        """Handles a failure of this rank at an operation that the others were told to do."""


class NoFollowers:
    """The lead of a model that one process holds: does nothing."""

    def send(self, order: Order) -> None:
        """Does nothing, as there are no other ranks."""

    def handle_failure(self, error: Exception) -> None:
        """Does nothing, as no other rank waits."""


NO_FOLLOWERS: Lead = NoFollowers()


@dataclass(frozen=True, slots=True)
class Run:
    """A forward; `rows` are the rows whose logits are wanted."""

    batch: Batch
    rows: Sequence[int]

    def carry_out(self, model: LanguageModel) -> None:
        """Runs this rank's part; only the leader reads the logits."""
        model.run_batch(self.batch, self.rows)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copying of rows between slots: see `KVCache.copy`."""

    source: int
    target: int
    start: int
    stop: int

    def carry_out(self, model: LanguageModel) -> None:
        """In this rank's heads."""
        model.cache.copy(self.source, self.target, self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Move:
    """Compaction of rows in one slot: see `KVCache.move`."""

    index: int
    rows: Sequence[int]
    start: int

    def carry_out(self, model: LanguageModel) -> None:
        """In this rank's heads."""
        model.cache.move(self.index, self.rows, self.start)
