"""Draft forward passes that do not pay are not run."""

from __future__ import annotations

from drafter_service.economy import Economy
from draftloop.tree import DraftBudget


def budget(**prices: float) -> DraftBudget:
    return DraftBudget(max_nodes=8, max_depth=8, **prices)


def test_forward_pays_when_its_gain_covers_its_time() -> None:
    economy = Economy(first_forward_s=0.01)
    assert economy.pays(1.0, budget())
    assert economy.pays(1.0, budget(tokens_per_second=50.0))
    assert not economy.pays(1.0, budget(tokens_per_second=70.0))
    assert not economy.pays(0.5, budget(tokens_per_second=50.0))
    assert not economy.pays(1.0, budget(least_path_probability=0.7))


def test_time_and_gain_follow_observed_forwards() -> None:
    economy = Economy(first_forward_s=0.01)
    for _ in range(100):
        economy.observe(0.002, 0.9)
    assert economy.pays(1.0, budget(tokens_per_second=400.0))
    assert not economy.pays(1.0, budget(tokens_per_second=500.0))


def test_first_forward_does_not_affect_the_time_of_later_ones() -> None:
    economy = Economy(first_forward_s=0.002)
    for _ in range(100):
        economy.observe(0.01, 0.9, first=True)
    assert economy.pays(1.0, budget(tokens_per_second=400.0))
    assert not economy.pays(1.0, budget(tokens_per_second=500.0))


def test_late_forward_does_not_stop_later_ones_for_good() -> None:
    """A forward that does not pay is not run, so only time can correct its estimated cost."""
    economy, draft_budget = Economy(first_forward_s=0.001), budget(tokens_per_second=400.0)
    economy.observe(0.4, 0.6)
    assert economy.pays(1.0, draft_budget)
    for _ in range(20):
        economy.observe(0.4, 0.6)
    assert not economy.pays(1.0, draft_budget)
    refused = 0
    while not economy.pays(1.0, draft_budget):
        refused += 1
    assert 100 < refused < 2000
