"""Compiled loops over a slot's pending rows: [3, rows], token, parent's row or ROOT, depth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from draftloop.runtime.compiling import compiled
from draftloop.tree import ROOT

TOKEN, PARENT, DEPTH = 0, 1, 2

Rows = npt.NDArray[np.int64]


@compiled
def deepen(rows: Rows, first: int, stop: int) -> None:
    """Fills in depths; parents come before children."""
    for row in range(first, stop):
        parent = rows[PARENT, row]
        rows[DEPTH, row] = 1 if parent == ROOT else rows[DEPTH, parent] + 1


@compiled
def follow(rows: Rows, stop: int, token_ids: Rows, path: Rows) -> int:
    """The rows that the tokens lead along from the root; how many there are."""
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
    """Only these rows, ascending, one behind the other; their parents are among them."""
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
def show_ancestors(rows: Rows, first: int, mask: npt.NDArray[np.bool_]) -> None:
    """mask: [rows, first + rows], set where a row from `first` on sees one: itself, an ancestor."""
    for place in range(len(mask)):
        row = first + place
        while row != ROOT:
            mask[place, row] = True
            row = rows[PARENT, row]
