"""Compiled loops over a slot's pending rows, [3, rows]: token; parent's row or ROOT; depth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from draftloop.runtime.compiling import compiled
from draftloop.tree import ROOT

TOKEN, PARENT, DEPTH = 0, 1, 2

Rows = npt.NDArray[np.int64]


@compiled
def fill_depths(rows: Rows, first: int, stop: int) -> None:
    """Fills in the depths of rows `first` to `stop`; parents come before children."""
    for row in range(first, stop):
        parent = rows[PARENT, row]
        rows[DEPTH, row] = 1 if parent == ROOT else rows[DEPTH, parent] + 1


@compiled
def follow(rows: Rows, stop: int, token_ids: Rows, path: Rows) -> int:
    """Writes the rows that the tokens lead to from the root to `path`; returns their number."""
    count, at = 0, ROOT
    for token in token_ids:
        found = ROOT
        for row in range(at + 1, stop):
            if rows[PARENT, row] == at and rows[TOKEN, row] == token:
                found = row
        if found == ROOT:
            break
        path[count], at = found, found
        count += 1
    return count


@compiled
def keep(rows: Rows, kept: Rows) -> None:
    """Compacts the rows to `kept`, which are ascending and include their parents."""
    for place in range(len(kept)):
        row = kept[place]
        parent = rows[PARENT, row]
        for earlier in range(place):
            if kept[earlier] == parent:
                parent = earlier
                break
        rows[TOKEN, place], rows[PARENT, place] = rows[TOKEN, row], parent
        rows[DEPTH, place] = rows[DEPTH, row]


@compiled
def fill_ancestor_mask(rows: Rows, first: int, mask: npt.NDArray[np.bool_]) -> None:
    """Sets mask[row - first, other] if `other` is the row itself or one of its ancestors.

    mask: [rows, first + rows], for the rows from `first` on.
    """
    for place in range(len(mask)):
        row = first + place
        while row != ROOT:
            mask[place, row] = True
            row = rows[PARENT, row]
