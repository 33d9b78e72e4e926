"""SIGTERM under load: what runs is finished, and the process ends with status 0."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.client import Case
from tests.faults.fleet import Fleet
from tests.faults.load import Load


@pytest.mark.parametrize("name", ["v1", "d1", "o1"])
def test_who_is_told_to_stop_finishes_first(
    fleet: Fleet, requests: list[Case], undisturbed: list[list[int]], name: str
) -> None:
    """Sixteen requests run through the first orchestrator, half of them by HTTP."""
    reopened = fleet.log("orchestrator").count("verifier session lost")
    with Load(fleet.orchestrators[:1], requests, undisturbed, once=True) as load:
        load.wait_until_under_way()
        fleet.processes[name].send(signal.SIGTERM)
    load.tally.assert_none_lost()
    assert load.tally.answered == len(requests) and not load.tally.asked_again
    assert fleet.processes[name].ended() == 0
    assert fleet.log("orchestrator").count("verifier session lost") == reopened
