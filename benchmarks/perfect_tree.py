"""How far a tree could go: rounds of a selector that always knows which candidates are right.

The selector verifies only nodes that will be accepted. So no other way to choose among the same
candidates gives more tokens per round, or the same tokens with fewer nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class CandidateSource(Protocol):
    """Offers children of a node on the true path."""

    @property
    def forwards(self) -> int:
        """Forwards of the draft model that the children of one node cost."""

    def offers(self, position: int, width: int) -> Sequence[int]:
        """At most `width` candidates for the token at `position`, best first."""

    def commit(self, start: int, end: int) -> None:
        """Announces that tokens `start` up to `end` are final; offers use only final tokens."""


@dataclass(frozen=True, slots=True)
class PerfectRound:
    """Number of accepted nodes, and the draft model's forwards that were needed to offer them."""

    accepted: int
    forwards: int

    @property
    def tokens(self) -> int:
        """Emitted tokens: the accepted nodes and the target's own next token."""
        return self.accepted + 1


def perfect_rounds(
    text: Sequence[int],
    prompt_length: int,
    sources: Sequence[CandidateSource],
    *,
    width: int,
    depth: int,
) -> list[PerfectRound]:
    """Rounds until the end of the text; candidates for a node come from every source.

    A path has at most `depth` nodes. It ends one token before the end of the text, which is the
    bonus token of the last round.
    """
    found: list[PerfectRound] = []
    start = prompt_length
    for source in sources:
        source.commit(0, start)
    while start < len(text):
        forwards = accepted = 0
        most = min(depth, len(text) - 1 - start)
        while accepted < most:
            cost = cheapest(sources, start + accepted, text[start + accepted], width)
            if cost is None:
                break
            forwards += cost
            accepted += 1
        end = start + accepted + 1
        for source in sources:
            source.commit(start, end)
        found.append(PerfectRound(accepted, forwards))
        start = end
    return found


def cheapest(
    sources: Sequence[CandidateSource], position: int, token: int, width: int
) -> int | None:
    """Fewest forwards with which a source offers the token; None if no source does."""
    costs = [source.forwards for source in sources if token in source.offers(position, width)]
    return min(costs, default=None)
