"""Speculation parameters: the draft sizes that a strategy's own parameters imply."""

from __future__ import annotations

import pytest

from draftloop.errors import InvalidInput
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
def test_strategy_parameters_set_the_draft_size(strategy: str) -> None:
    """OPT-Tree's n = 50 (2406.17276, section 4) exceeds the default size of drafts."""
    assert OWN.max_nodes_of(strategy) == SIZES.get(strategy)


def test_unset_strategy_parameters_leave_the_draft_size_open() -> None:
    assert Speculation().max_nodes_of("opt_tree") is None
    assert Speculation().max_nodes_of("cascade") is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_default_parameters_are_valid_for_every_target(strategy: str) -> None:
    """With 55 nodes per draft, `lookahead` used to be refused for a default window."""
    for most in (1, 16, 55, 1024):
        Speculation(strategy=strategy).validate(most)


def test_requested_window_must_fit() -> None:
    speculation = Speculation(strategy="lookahead", lookahead=LookaheadParameters(window=6))
    speculation.validate(52)
    with pytest.raises(InvalidInput, match="speculation.lookahead: .* must be at most 51; got 52"):
        speculation.validate(51)
