"""Ways to draft are compared by what their drafts bring."""

from __future__ import annotations

import pytest

from drafter_service.ways import RETRY, RETRY_OF_ALL, TRIALS, Guessing, Way, Ways


def forwards_that_guess(guessing: Guessing, count: int, tokens: int) -> list[bool]:
    """Which of `count` forwards guess, if they add `tokens` tokens with guesses and 1 without."""
    guesses = []
    for _ in range(count):
        guessed = guessing.should_guess()
        guessing.observe(guessed, tokens if guessed else 1, 0.01)
        guesses.append(guessed)
    return guesses


def test_guessing_is_tried_and_kept_if_it_is_better() -> None:
    for tokens, better in ((3, True), (0, False)):
        guesses = forwards_that_guess(Guessing(), 4 * RETRY, tokens)
        assert guesses[: 2 * TRIALS] == [True] * TRIALS + [False] * TRIALS
        last = guesses[2 * TRIALS :]
        assert last.count(not better) == 4 and last.count(better) == len(last) - 4


def test_guesses_that_became_better_are_found_again() -> None:
    guessing = Guessing()
    forwards_that_guess(guessing, 3 * RETRY, 0)
    assert all(forwards_that_guess(guessing, 40 * RETRY, 5)[-RETRY:-1])


def drafted_ways(
    ways: Ways, count: int, worths: dict[Way, float], usual: Way = Way.BOTH
) -> list[Way]:
    taken = []
    for _ in range(count):
        taken.append(way := ways.next(usual))
        ways.observe(way, worths[way])
    return taken


@pytest.mark.parametrize("best", Way)
@pytest.mark.parametrize("usual", [Way.BOTH, Way.LARGER])
def test_usual_way_is_taken_until_another_is_clearly_better(usual: Way, best: Way) -> None:
    worths = {way: 3.0 if way is best else 1.0 for way in Way}
    taken = drafted_ways(Ways(), 60 * RETRY_OF_ALL, worths, usual)
    assert set(taken[: RETRY_OF_ALL - 1]) == {usual}
    assert set(taken) == set(Way)
    last = taken[-4 * RETRY_OF_ALL :]
    other_ways = [way for way in last if way is not best]
    assert len(other_ways) == 4 and set(other_ways) == set(Way) - {best}


def test_few_lucky_drafts_do_not_decide() -> None:
    ways = Ways()
    drafted_ways(ways, 2 * RETRY_OF_ALL, {Way.BOTH: 2.0, Way.LARGER: 8.0, Way.SMALLER: 8.0})
    assert ways.next(Way.BOTH) is Way.BOTH


def test_way_that_became_worse_is_left() -> None:
    ways, smaller = Ways(), {Way.BOTH: 1.0, Way.LARGER: 1.0, Way.SMALLER: 9.0}
    assert drafted_ways(ways, 12 * RETRY_OF_ALL, smaller)[-2] is Way.SMALLER
    assert drafted_ways(ways, 60 * RETRY_OF_ALL, smaller | {Way.SMALLER: 0.0})[-2] is Way.BOTH
