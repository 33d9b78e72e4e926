"""Lookahead: a window of Jacobi positions that yields n-grams (Fu et al. 2402.02057, section 3).

The window rides along in a forward that runs anyway, as nodes of a tree. Row 0 is a chain from the
root; the token in column c of a later row hangs under column c of the row above. So a window token
sees row 0 up to its column and its own column above it, as the paper's mask has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftloop.errors import InvalidInput
from draftloop.tree import TokenSource
from draftloop.tree_builder import TreeBuilder

# A window token is there for what the model says after it, hardly ever to be accepted itself.
WINDOW_ESTIMATE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadParameters:
    """`window` columns (W), n-grams of `ngram` tokens (N), `candidates` checked a forward (G).

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
        if self.most_nodes > max_nodes:
            rule = f"(window + candidates) x (ngram - 1) must be at most {max_nodes}"
            raise InvalidInput(field, rule, self.most_nodes)

    @property
    def most_nodes(self) -> int:
        """Nodes of a full window and as many candidates as may be."""
        return (self.window + self.candidates) * (self.ngram - 1)


class LookaheadWindow:
    """`rows`: up to N - 1 lists of W tokens; row r begins r positions after the next token.

    It begins as one row and grows by one row a forward. In between come `place` and `advance`.
    """

    def __init__(self, parameters: LookaheadParameters, text: Sequence[int]) -> None:
        self._ngram = parameters.ngram
        # The paper begins with random tokens of the prompt; these are as good and reproducible.
        stride = len(text) // (parameters.window + 1) or 1
        self.rows = [[text[column * stride % len(text)] for column in range(parameters.window)]]
        self._last_row: list[int] = []

    def place(self, builder: TreeBuilder, root: int, max_depth: int, max_nodes: int) -> None:
        """Adds the window below `root`, as many columns as depth and nodes allow.

        Columns that find no room are forgotten: that happens at the very end of a text only.
        """
        height = len(self.rows)
        columns = max(0, min(len(self.rows[0]), max_depth - height + 1, max_nodes // height))
        self.rows = [row[:columns] for row in self.rows]
        above = [root] * columns
        for index, row in enumerate(self.rows):
            nodes: list[int] = []
            for column, token in enumerate(row):
                parent = nodes[-1] if index == 0 and nodes else above[column]
                nodes.append(builder.add(parent, token, WINDOW_ESTIMATE, TokenSource.LOOKAHEAD))
            above = nodes
        self._last_row = above

    def advance(self, predictions: Sequence[int]) -> list[tuple[int, ...]]:
        """Moves the rows up by one; returns the n-grams that came out, one a column.

        `predictions` are the model's own tokens after every node of the tree that was placed on.
        """
        newest = [predictions[node] for node in self._last_row]
        if not newest:
            return []
        ngrams: list[tuple[int, ...]] = []
        if len(self.rows) == self._ngram - 1:
            columns = zip(*self.rows, newest, strict=True)
            ngrams = list(dict.fromkeys(columns))
            self.rows.pop(0)
        self.rows.append(newest)
        return ngrams
