"""What the draft model said after a node, for as long as the slot holds the node's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Said:
    """The best tokens after a node with their shares of all, once its forward has ended.

    `row`: the node's place among the slot's pending rows. `children`: by token the nodes behind it
    that were run when another node was the root.
    """

    row: int
    token_ids: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    children: dict[int, Said] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaidBefore:
    """The `Choices` of nodes that were run before, as far as growing needs them."""

    nodes: Sequence[Said]

    @property
    def token_ids(self) -> list[list[int]]:
        """[nodes, count], best first."""
        return [node.token_ids for node in self.nodes]

    def shares(self) -> list[list[float]]:
        """[nodes, count], of `token_ids`."""
        return [node.shares for node in self.nodes]

    def shares_of(self, rows: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Of the nodes number `rows` at these tokens; 0 for those that are not among the best."""
        known = [dict(zip(node.token_ids, node.shares, strict=True)) for node in self.nodes]
        return [known[row].get(token, 0.0) for row, token in zip(rows, token_ids, strict=True)]
