"""What clients say of drafting: how large a draft becomes by a strategy's own parameters."""

from __future__ import annotations

import pytest

from draftloop.lookahead import LookaheadParameters
from draftloop.speculation import (
    STRATEGIES,
    CascadeParameters,
    OptTreeParameters,
    Speculation,
)

OWN = Speculation(
    lookahead=LookaheadParameters(window=5, ngram=4, candidates=3),
    opt_tree=OptTreeParameters(nodes=50),
    cascade=CascadeParameters(matrix=((20, 25), (0, 6))),
)
SIZES = {"lookahead": 24, "opt_tree": 50, "cascade": 45}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parameters_that_say_how_much(strategy: str) -> None:
    """OPT-Tree's n = 50 (2406.17276, section 4) is more than a draft has without a word."""
    assert OWN.most_nodes(strategy) == SIZES.get(strategy)


def test_parameters_that_leave_it_open() -> None:
    assert Speculation().most_nodes("opt_tree") is None
    assert Speculation().most_nodes("cascade") is None
