"""Reviews: what the draft model's word makes of a node that another source offered."""

from __future__ import annotations

import numpy as np
import pytest

from drafter_service.candidates import Candidates
from drafter_service.strategies.fused import Fused
from drafter_service.tree_children import LEVEL_DEPTHS, LEVEL_EDGES, SUREST, USUAL, both, weigh
from drafter_service.tree_children import Offered as Guesses
from drafter_service.tree_nodes import OWN, REVIEWS
from draftloop.calibration import cell_of
from draftloop.request import SamplingParameters
from draftloop.tree import DraftTree, TokenSource
from tests.support.scripted_drafter import ScriptedModel, session_of
from tests.support.toy_model import TableModel

TOKEN, OTHER = 3, 2
OFFERED, HEARD = 0.3, 0.9  # by the source, and by the draft model


def candidates() -> Candidates:
    model = ScriptedModel(TableModel(vocabulary_size=5, seed=0).logits, 5)
    return Fused(session_of(model, [1, 0, 2], SamplingParameters(seed=7))).candidates


def test_of_a_node_as_likely_as_usual_the_draft_models_word_is_all_there_is() -> None:
    for heard in (0.1, 0.35, 0.6, 0.9):
        assert both(USUAL, heard) == pytest.approx(heard)
        assert both(0.1, heard) < heard < both(0.8, heard)


def test_a_draft_model_is_never_so_sure_that_a_source_has_no_say() -> None:
    assert both(0.9, 0.0) == both(0.9, 1 - SUREST) > 0.5
    assert both(0.1, 1.0) == both(0.1, SUREST) == pytest.approx(0.6)


@pytest.mark.parametrize("first", [TOKEN, OTHER])
@pytest.mark.parametrize(
    ("source", "finer", "coarser"),
    [
        (TokenSource.PHRASE, OFFERED, HEARD),
        # A smaller draft model knows less of the same: the larger one's score counts by its bucket.
        (TokenSource.DRAFT_MODEL, HEARD, OFFERED),
    ],
)
def test_a_reviewed_node_is_counted_by_both_scores(
    source: TokenSource, finer: float, coarser: float, first: int
) -> None:
    known = candidates()
    known.offer(DraftTree.chain([TOKEN], source, [OFFERED]), 8)
    guesses = Guesses(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([HEARD]))
    weigh(known._tree, known._learned, guesses, np.array([[first, 1]]))
    level = int(LEVEL_DEPTHS[np.searchsorted(LEVEL_EDGES, coarser, side="right")])
    (node,) = known.nodes
    assert node["judged_by"] == REVIEWS
    assert node["cell"] == cell_of(source, finer, level, first == TOKEN)


def test_what_stands_behind_a_wrong_token_is_not_judged() -> None:
    """Its token comes in the text as well, but behind another."""
    known = candidates()
    known.offer(DraftTree.chain([TOKEN, OTHER], TokenSource.DRAFT_MODEL, [0.5, 0.5]), 8)
    cells = [cell_of(TokenSource.DRAFT_MODEL, 0.5, depth) for depth in (1, 2)]
    known.nodes["judged_by"], known.nodes["cell"] = OWN, cells
    trials = known._learned.own.trials
    known.judge([4, OTHER])
    assert [trials[cell] for cell in cells] == [1, 0]
    known.judge([TOKEN, OTHER])
    assert [trials[cell] > 0 for cell in cells] == [True, True]
