"""The circuit breaker, with scripted time and chance."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from phrase_store.breaker import BreakerPolicy, BreakerState, CircuitBreaker

POLICY = BreakerPolicy(failures=3, first_pause_s=1.0, max_pause_s=5.0, growth=2.0)


@dataclass
class ScriptedConditions:
    """Time and chance as the test sets them."""

    now: float = 100.0
    chance: float = 0.0

    def breaker(self, policy: BreakerPolicy = POLICY) -> CircuitBreaker:
        return CircuitBreaker(policy, clock=lambda: self.now, chance=lambda: self.chance)


def opened_breaker(script: ScriptedConditions) -> CircuitBreaker:
    breaker = script.breaker()
    fail_three_times(breaker)
    return breaker


def fail_three_times(breaker: CircuitBreaker) -> None:
    for state in (BreakerState.CLOSED, BreakerState.CLOSED, BreakerState.OPEN):
        breaker.record_failure()
        assert breaker.state is state


def test_closed_breaker_admits_calls_after_single_failures() -> None:
    breaker = ScriptedConditions().breaker()
    for _ in range(5):
        assert breaker.allows_call() and breaker.wait_s() == 0
        breaker.record_failure()
        breaker.record_failure()
        breaker.record_success()  # only failures in a row count
    assert breaker.state is BreakerState.CLOSED


def test_consecutive_failures_open_the_breaker() -> None:
    script = ScriptedConditions()
    breaker = opened_breaker(script)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows_call() and breaker.wait_s() == 1.0
    script.now += 0.75
    assert not breaker.allows_call() and breaker.wait_s() == 0.25


def test_single_probe_is_admitted_after_the_pause() -> None:
    script = ScriptedConditions()
    breaker = opened_breaker(script)
    script.now += 1.0
    assert breaker.wait_s() == 0.0
    assert breaker.allows_call() and breaker.state is BreakerState.HALF_OPEN
    assert not breaker.allows_call() and breaker.wait_s() > 0
    breaker.record_success()
    assert breaker.wait_s() == 0 and breaker.allows_call() and breaker.allows_call()


def test_no_wait_after_an_expired_pause() -> None:
    script = ScriptedConditions()
    breaker = opened_breaker(script)
    script.now += 60.0
    assert breaker.wait_s() == 0.0 and breaker.allows_call()


def test_pauses_grow_to_the_longest_and_reset_after_a_success() -> None:
    script = ScriptedConditions()
    breaker = opened_breaker(script)
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
    fail_three_times(breaker)
    assert breaker.wait_s() == 1.0


def test_late_failure_of_an_earlier_call_does_not_extend_the_pause() -> None:
    script = ScriptedConditions()
    breaker = opened_breaker(script)
    script.now += 0.5
    breaker.record_failure()
    assert breaker.wait_s() == 0.5


def test_late_success_of_an_earlier_call_closes_the_breaker() -> None:
    breaker = opened_breaker(ScriptedConditions())
    breaker.record_success()
    assert breaker.allows_call()


@pytest.mark.parametrize("chance, pause", [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)])
def test_pauses_are_shortened_at_random_by_up_to_half(chance: float, pause: float) -> None:
    """Processes that lost the service together must not all return at once."""
    assert opened_breaker(ScriptedConditions(chance=chance)).wait_s() == pytest.approx(pause)


def test_breaker_policy_is_comparable_and_has_a_repr() -> None:
    assert BreakerPolicy(failures=3) == BreakerPolicy()
    assert "failures=1" in repr(BreakerPolicy(failures=1))
