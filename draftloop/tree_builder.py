"""Draft trees under construction; the same token under the same parent is a single node."""

from __future__ import annotations

from collections.abc import Iterable

from draftloop.tree import ROOT, DraftTree, TokenSource


class TreeBuilder:
    """Adds nodes one by one. A node added twice keeps its first source and its higher estimate."""

    def __init__(self, start: DraftTree | None = None) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self._estimates: list[float] = []
        self._sources: list[TokenSource] = []
        self._children: dict[tuple[int, int], int] = {}
        if start is not None:
            self.graft(ROOT, start)

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, parent: int, token: int, estimate: float, source: TokenSource) -> int:
        """Returns the node for `token` under `parent`, adding it if needed."""
        node = self._children.setdefault((parent, token), len(self))
        if node < len(self):
            self._estimates[node] = max(self._estimates[node], estimate)
            return node
        self.token_ids.append(token)
        self.parents.append(parent)
        self._estimates.append(estimate)
        self._sources.append(source)
        return node

    def add_chain(
        self, parent: int, token_ids: Iterable[int], estimate: float, source: TokenSource
    ) -> int:
        """Adds tokens as a chain under `parent`; returns the last one's node."""
        for token in token_ids:
            parent = self.add(parent, token, estimate, source)
        return parent

    def graft(self, parent: int, tree: DraftTree) -> None:
        """Adds all of `tree` under `parent`."""
        nodes = {ROOT: parent}
        rows = zip(tree.token_ids, tree.parents, tree.estimates, tree.sources, strict=True)
        for index, (token, above, estimate, source) in enumerate(rows):
            nodes[index] = self.add(nodes[above], token, estimate, source)

    def build(self) -> DraftTree:
        """The tree as it is now."""
        return DraftTree(
            token_ids=tuple(self.token_ids),
            parents=tuple(self.parents),
            estimates=tuple(self._estimates),
            sources=tuple(self._sources),
        )
