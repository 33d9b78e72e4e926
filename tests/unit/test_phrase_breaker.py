"""The circuit breaker, with scripted time and chance."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from phrase_store.breaker import BreakerPolicy, BreakerState, CircuitBreaker

POLICY = BreakerPolicy(failures=3, first_pause_s=1.0, max_pause_s=5.0, growth=2.0)


@dataclass
class Script:
    """Time and chance as the test sets them."""

    now: float = 100.0
    chance: float = 0.0

    def breaker(self, policy: BreakerPolicy = POLICY) -> CircuitBreaker:
        return CircuitBreaker(policy, clock=lambda: self.now, chance=lambda: self.chance)


def opened(script: Script) -> CircuitBreaker:
    breaker = script.breaker()
    fails_thrice(breaker)
    return breaker


def fails_thrice(breaker: CircuitBreaker) -> None:
    for state in (BreakerState.CLOSED, BreakerState.CLOSED, BreakerState.OPEN):
        breaker.record_failure()
        assert breaker.state is state


def test_calls_go_through_at_first_and_after_single_failures() -> None:
    breaker = Script().breaker()
    for _ in range(5):
        assert breaker.allows_call() and breaker.wait_s() == 0
        breaker.record_failure()
        breaker.record_failure()
        breaker.record_success()  # only failures in a row count
    assert breaker.state is BreakerState.CLOSED


def test_failures_in_a_row_open_it_and_only_the_last_one_tells() -> None:
    script = Script()
    breaker = opened(script)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows_call() and breaker.wait_s() == 1.0
    script.now += 0.75
    assert not breaker.allows_call() and breaker.wait_s() == 0.25


def test_after_the_pause_one_caller_finds_out_for_all() -> None:
    script = Script()
    breaker = opened(script)
    script.now += 1.0
    assert breaker.wait_s() == 0.0
    assert breaker.allows_call() and breaker.state is BreakerState.HALF_OPEN
    assert not breaker.allows_call() and breaker.wait_s() > 0
    breaker.record_success()
    assert breaker.wait_s() == 0 and breaker.allows_call() and breaker.allows_call()


def test_a_pause_that_is_long_over_is_no_wait() -> None:
    script = Script()
    breaker = opened(script)
    script.now += 60.0
    assert breaker.wait_s() == 0.0 and breaker.allows_call()


def test_pauses_grow_up_to_the_longest_and_start_again_after_a_success() -> None:
    script = Script()
    breaker = opened(script)
    pauses = []
    for _ in range(5):
        pauses.append(breaker.wait_s())
        script.now += pauses[-1]
        assert breaker.allows_call()
        breaker.record_failure()
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    script.now += 5.0
    assert breaker.allows_call()
    breaker.record_success()
    fails_thrice(breaker)
    assert breaker.wait_s() == 1.0


def test_a_call_that_began_before_it_opened_changes_nothing_when_it_fails() -> None:
    script = Script()
    breaker = opened(script)
    script.now += 0.5
    breaker.record_failure()
    assert breaker.wait_s() == 0.5


def test_a_call_that_began_before_it_opened_closes_it_when_it_succeeds() -> None:
    breaker = opened(Script())
    breaker.record_success()
    assert breaker.allows_call()


@pytest.mark.parametrize("chance, pause", [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)])
def test_pauses_are_cut_by_up_to_one_half(chance: float, pause: float) -> None:
    """Processes that lost the service together must not all return at once."""
    assert opened(Script(chance=chance)).wait_s() == pytest.approx(pause)


def test_policies_are_values() -> None:
    assert BreakerPolicy(failures=3) == BreakerPolicy()
    assert "failures=1" in repr(BreakerPolicy(failures=1))
