"""The lists of strategies in orchestrator and drafter agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drafter_service import strategies
from draftloop.speculation import DRAFTER_STRATEGIES, STRATEGIES
from orchestrator.deployment import Deployment


def test_the_drafter_has_those_that_ask_it() -> None:
    assert set(strategies.STRATEGIES) == set(DRAFTER_STRATEGIES)


def test_none_stands_twice() -> None:
    assert len(set(STRATEGIES)) == len(STRATEGIES)


def test_an_unknown_one_is_no_prompt_lookup() -> None:
    """A name that was only added to the list used to draft as prompt lookup does."""
    request: Any = SimpleNamespace(strategy="forgotten")
    deployment: Any = Deployment.__new__(Deployment)
    with pytest.raises(AssertionError, match="forgotten"):
        deployment._draft_without_model_service(request, None, None)
