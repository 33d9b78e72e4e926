"""Lookahead: a window of Jacobi positions that yields n-grams (Fu et al. 2402.02057, section 3).

The window is computed in a forward that runs anyway, as nodes of a tree. Row 0 is a chain from the
root; the token in column c of a later row is a child of column c of the row above. So a window
token attends to row 0 up to its column and to its own column above it, like in the paper's mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftloop.errors import InvalidInput
from draftloop.tree import ROOT, TokenSource
from draftloop.tree_builder import TreeBuilder

# Window tokens serve to get the model's predictions after them; they are hardly ever accepted.
WINDOW_ESTIMATE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadParameters:
    """`window` columns (W), n-grams of `ngram` tokens (N), `candidates` checked per forward (G).

    `pool_size` n-grams are kept for every first token.
    """

    window: int = 7
    ngram: int = 5
    candidates: int = 7
    pool_size: int = 16

    def validate(self, field: str, max_nodes: int) -> None:
        """Raises InvalidInput unless window and candidates fit a draft of `max_nodes`."""
        for name, least in (("window", 1), ("ngram", 2), ("candidates", 1), ("pool_size", 1)):
            value = getattr(self, name)
            if value < least:
                raise InvalidInput(f"{field}.{name}", f"must be at least {least}", value)
        if self.max_total_nodes > max_nodes:
            rule = f"(window + candidates) x (ngram - 1) must be at most {max_nodes}"
            raise InvalidInput(field, rule, self.max_total_nodes)

    @property
    def max_total_nodes(self) -> int:
        """Number of nodes of a full window and the maximum number of candidates."""
        return (self.window + self.candidates) * (self.ngram - 1)


class LookaheadWindow:
    """`rows`: up to N - 1 lists of W tokens; row r begins r positions after the next token.

    It begins with one row and grows by one row per forward, until it has N - 1. Call `place` and
    `advance` in turn. Columns that do not fit into a forward keep their guesses until one has room.
    """

    def __init__(self, parameters: LookaheadParameters, text: Sequence[int]) -> None:
        self._ngram = parameters.ngram
        # The paper starts with random tokens of the prompt; evenly spaced ones are as good and
        # reproducible.
        stride = len(text) // (parameters.window + 1) or 1
        self.rows = [[text[column * stride % len(text)] for column in range(parameters.window)]]
        self._last_row: list[int] = []

    def reserved(self, max_depth: int, max_nodes: int) -> int:
        """Number of nodes that other proposals must leave free in a forward of `max_nodes`.

        It is the size of the whole window or, if that is more than half of the nodes, of as many
        whole columns as fit into half.
        """
        return len(self.rows) * self._columns(max_depth, max_nodes // 2)

    def _columns(self, max_depth: int, max_nodes: int) -> int:
        height = len(self.rows)
        return max(0, min(len(self.rows[0]), max_depth - height + 1, max_nodes // height))

    def place(self, builder: TreeBuilder, max_depth: int, max_nodes: int) -> None:
        """Adds the window's columns below the root, as many as depth and nodes allow."""
        columns = self._columns(max_depth, max_nodes)
        above = [ROOT] * columns
        for index, row in enumerate(self.rows):
            nodes: list[int] = []
            for column, token in enumerate(row[:columns]):
                parent = nodes[-1] if index == 0 and nodes else above[column]
                nodes.append(builder.add(parent, token, WINDOW_ESTIMATE, TokenSource.LOOKAHEAD))
            above = nodes
        self._last_row = above

    def advance(self, predictions: Sequence[int]) -> list[tuple[int, ...]]:
        """Moves the rows up by one; returns the n-grams that were completed, one per placed column.

        `predictions` are the model's own tokens after every node of the tree on which the window
        was placed. A column that was not placed continues with its last token: any guess may lead
        to a text.
        """
        newest = [predictions[node] for node in self._last_row]
        if not newest:
            return []
        ngrams: list[tuple[int, ...]] = []
        waiting = self.rows[-1][len(newest) :]
        if len(self.rows) == self._ngram - 1:
            placed = zip(*self.rows, newest, strict=False)  # `newest` is the shortest
            ngrams = list(dict.fromkeys(placed))
            self.rows.pop(0)
        self.rows.append([*newest, *waiting])
        return ngrams
