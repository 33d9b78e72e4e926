"""Connections between services that are cut, or go silent without being closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.client import Case
from tests.faults.fleet import Fleet
from tests.faults.load import Load
from tests.support.waiting import until

PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def fleet_behind_proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with one orchestrator, which reaches every other service through its own proxy."""
    with Fleet(tmp_path_factory.mktemp("wired"), orchestrators=1, behind_proxies=True) as fleet:
        yield fleet


@pytest.mark.faults
@pytest.mark.parametrize("name", ["v1", "d1"])
def test_requests_survive_reset_connections(
    fleet_behind_proxies: Fleet,
    requests: list[Case],
    fault_free_outputs: list[list[int]],
    name: str,
) -> None:
    """The connection is reset instead of closed, several times."""
    with Load(fleet_behind_proxies.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        for _ in range(5):
            fleet_behind_proxies.wires[name].reset()
            answered = load.tally.answered
            until(lambda answered=answered: load.tally.answered > answered, PATIENCE_S)  # type: ignore[misc]
    load.tally.assert_none_lost()
    fleet_behind_proxies.wait_until_free()


@pytest.mark.faults
@pytest.mark.parametrize("name", ["v1", "d1"])
def test_silent_connections_are_detected_by_keepalive(
    fleet_behind_proxies: Fleet,
    requests: list[Case],
    fault_free_outputs: list[list[int]],
    name: str,
) -> None:
    """Keepalive detects it on both sides: requests go on elsewhere, and the sessions are freed."""
    with Load(fleet_behind_proxies.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        fleet_behind_proxies.wires[name].hold()
    load.tally.assert_none_lost()  # although the proxy still holds everything back
    fleet_behind_proxies.wait_until_free()
    fleet_behind_proxies.wires[name].release()
    with Load(
        fleet_behind_proxies.orchestrators, requests, fault_free_outputs, once=True
    ) as second_load:
        pass
    second_load.tally.assert_none_lost()
