"""The lists of strategies in orchestrator and drafter agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drafter_service import strategies
from draftloop.speculation import DRAFTER_STRATEGIES, STRATEGIES
from orchestrator.deployment import Deployment


def test_drafter_has_every_strategy_that_uses_it() -> None:
    assert set(strategies.STRATEGIES) == set(DRAFTER_STRATEGIES)


def test_strategies_are_listed_once() -> None:
    assert len(set(STRATEGIES)) == len(STRATEGIES)


def test_unknown_strategy_raises_instead_of_using_prompt_lookup() -> None:
    """A name that was only added to the list used to draft as prompt lookup does."""
    request: Any = SimpleNamespace(strategy="forgotten")
    deployment: Any = Deployment.__new__(Deployment)
    with pytest.raises(AssertionError, match="forgotten"):
        deployment._draft_without_model_service(request, None, None)
