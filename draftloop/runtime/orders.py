"""What the other ranks of a split model are told, so that all of them do the same.

The rank that holds the sessions decides; the others know nothing but rows of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from draftloop.runtime.forward import Batch
    from draftloop.runtime.model import LanguageModel


class Order(Protocol):
    """Can be pickled."""

    def carry_out(self, model: LanguageModel) -> None:
        """Does it with the part of the model that this rank holds."""


class Lead(Protocol):
    """Who does it too."""

    def tell(self, order: Order) -> None:
        """Has the other ranks do what this one is about to do; in the order in which it is told."""

    def broken(self, error: Exception) -> None:
        """Takes in that this rank has failed at what the others were told."""


class Nobody:
    """The lead of a model that one process holds."""

    def tell(self, order: Order) -> None:
        """There is nobody to tell."""

    def broken(self, error: Exception) -> None:
        """There is nobody who waits."""


NOBODY: Lead = Nobody()


@dataclass(frozen=True, slots=True)
class Run:
    """A forward; `rows` are those whose logits are wanted."""

    batch: Batch
    rows: Sequence[int]

    def carry_out(self, model: LanguageModel) -> None:
        """The logits are the leader's to read."""
        model.run_batch(self.batch, self.rows)


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows of the cache from one slot to another: see `KVCache.copy`."""

    source: int
    target: int
    start: int
    stop: int

    def carry_out(self, model: LanguageModel) -> None:
        """In this rank's heads."""
        model.cache.copy(self.source, self.target, self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Move:
    """Rows of one slot together: see `KVCache.move`."""

    index: int
    rows: Sequence[int]
    start: int

    def carry_out(self, model: LanguageModel) -> None:
        """In this rank's heads."""
        model.cache.move(self.index, self.rows, self.start)
