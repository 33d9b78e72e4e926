"""The report on an empty draft does not repeat that of the draft before."""

from __future__ import annotations

import pytest

from drafter_service.strategies import STRATEGIES
from draftloop.request import SamplingParameters
from draftloop.tree import DraftBudget, DraftEnd
from tests.support.scripted_drafter import ScriptedModel, finish, session_of
from tests.support.toy_model import TableModel

PROMPT = [1, 0, 2]
VOCABULARY = 5


@pytest.mark.parametrize("name", ["speculative", "opt_tree", "fused"])
@pytest.mark.parametrize(("nodes", "depth"), [(0, 4), (4, 0)])
def test_empty_draft_reports_no_end_and_no_proposed_nodes(
    name: str, nodes: int, depth: int
) -> None:
    """An empty draft after one of 4 nodes used to report 4 proposed nodes, ended by depth."""
    model = ScriptedModel(TableModel(VOCABULARY, seed=0).logits, VOCABULARY)
    session = session_of(model, PROMPT, SamplingParameters(temperature=1.0), strategy=name)
    strategy = STRATEGIES[name](session)
    first = finish(strategy.propose(DraftBudget(max_nodes=4, max_depth=4)), session)
    assert first.token_ids and strategy.end is not DraftEnd.NONE
    empty = finish(strategy.propose(DraftBudget(max_nodes=nodes, max_depth=depth)), session)
    assert empty.token_ids == ()
    assert (strategy.end, strategy.proposed_nodes) == (DraftEnd.NONE, 0)
