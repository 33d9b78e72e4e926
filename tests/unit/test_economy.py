"""Draft forwards that do not pay are not run, and ways to draft are compared by what they do."""

from __future__ import annotations

import pytest

from drafter_service.economy import RETRY, RETRY_OF_ALL, TRIALS, Choice, Economy, Way, Ways
from draftloop.tree import DraftBudget


def budget(**prices: float) -> DraftBudget:
    return DraftBudget(max_nodes=8, max_depth=8, **prices)


def test_a_forward_must_bring_in_what_its_time_brings_in_otherwise() -> None:
    economy = Economy(first_forward_s=0.01)
    assert economy.pays(1.0, budget())
    assert economy.pays(1.0, budget(tokens_per_second=50.0))
    assert not economy.pays(1.0, budget(tokens_per_second=70.0))
    assert not economy.pays(0.5, budget(tokens_per_second=50.0))
    assert not economy.pays(1.0, budget(least_path_probability=0.7))


def test_time_and_gain_follow_what_forwards_do() -> None:
    economy = Economy(first_forward_s=0.01)
    for _ in range(100):
        economy.observe(0.002, 0.9)
    assert economy.pays(1.0, budget(tokens_per_second=400.0))
    assert not economy.pays(1.0, budget(tokens_per_second=500.0))


def test_the_first_forward_of_a_draft_says_nothing_about_the_time_of_a_further_one() -> None:
    economy = Economy(first_forward_s=0.002)
    for _ in range(100):
        economy.observe(0.01, 0.9, first=True)
    assert economy.pays(1.0, budget(tokens_per_second=400.0))
    assert not economy.pays(1.0, budget(tokens_per_second=500.0))


def test_one_late_forward_does_not_end_further_ones_for_good() -> None:
    """What does not pay is never run: nothing but time could correct what it seems to take."""
    economy, asked = Economy(first_forward_s=0.001), budget(tokens_per_second=400.0)
    economy.observe(0.4, 0.6)
    assert economy.pays(1.0, asked)
    for _ in range(20):
        economy.observe(0.4, 0.6)
    assert not economy.pays(1.0, asked)
    refused = 0
    while not economy.pays(1.0, asked):
        refused += 1
    assert 100 < refused < 2000


def taken(choice: Choice, count: int, first_tokens: int) -> list[bool]:
    ways = []
    for _ in range(count):
        first = choice.takes_first()
        choice.observe(first, first_tokens if first else 1, 0.01)
        ways.append(first)
    return ways


def test_both_ways_are_tried_and_the_better_one_is_kept() -> None:
    for tokens, better in ((3, True), (0, False)):
        ways = taken(Choice(), 4 * RETRY, tokens)
        assert ways[: 2 * TRIALS] == [True] * TRIALS + [False] * TRIALS
        later = ways[2 * TRIALS :]
        assert later.count(not better) == 4 and later.count(better) == len(later) - 4


def test_a_way_that_became_better_is_found_again() -> None:
    choice = Choice()
    taken(choice, 3 * RETRY, 0)
    assert all(taken(choice, 40 * RETRY, 5)[-RETRY:-1])


def drafts(ways: Ways, count: int, worths: dict[Way, float], usual: Way = Way.BOTH) -> list[Way]:
    taken = []
    for _ in range(count):
        taken.append(way := ways.next(usual))
        ways.observe(way, worths[way])
    return taken


@pytest.mark.parametrize("best", Way)
@pytest.mark.parametrize("usual", [Way.BOTH, Way.LARGER])
def test_drafts_go_the_usual_way_until_another_is_clearly_better(usual: Way, best: Way) -> None:
    worths = {way: 3.0 if way is best else 1.0 for way in Way}
    taken = drafts(Ways(), 60 * RETRY_OF_ALL, worths, usual)
    assert set(taken[: RETRY_OF_ALL - 1]) == {usual}
    assert set(taken) == set(Way)
    later = taken[-4 * RETRY_OF_ALL :]
    others = [way for way in later if way is not best]
    assert len(others) == 4 and set(others) == set(Way) - {best}


def test_a_few_lucky_drafts_do_not_decide() -> None:
    ways = Ways()
    drafts(ways, 2 * RETRY_OF_ALL, {Way.BOTH: 2.0, Way.LARGER: 8.0, Way.SMALLER: 8.0})
    assert ways.next(Way.BOTH) is Way.BOTH


def test_a_way_that_was_better_is_left_again() -> None:
    ways, smaller = Ways(), {Way.BOTH: 1.0, Way.LARGER: 1.0, Way.SMALLER: 9.0}
    assert drafts(ways, 12 * RETRY_OF_ALL, smaller)[-2] is Way.SMALLER
    assert drafts(ways, 60 * RETRY_OF_ALL, smaller | {Way.SMALLER: 0.0})[-2] is Way.BOTH
