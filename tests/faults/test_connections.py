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
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with one orchestrator, which reaches every other service through its own proxy."""
    with Fleet(tmp_path_factory.mktemp("wired"), orchestrators=1, wired=True) as fleet:
        yield fleet


@pytest.mark.faults
@pytest.mark.parametrize("name", ["v1", "d1"])
def test_a_cut_wire(
    wired: Fleet, requests: list[Case], undisturbed: list[list[int]], name: str
) -> None:
    """The connection is reset instead of closed, several times."""
    with Load(wired.orchestrators, requests, undisturbed) as load:
        load.wait_until_under_way()
        for _ in range(5):
            wired.wires[name].reset()
            answered = load.tally.answered
            until(lambda answered=answered: load.tally.answered > answered, PATIENCE_S)  # type: ignore[misc]
    load.tally.assert_none_lost()
    wired.wait_until_free()


@pytest.mark.faults
@pytest.mark.parametrize("name", ["v1", "d1"])
def test_a_half_open_wire(
    wired: Fleet, requests: list[Case], undisturbed: list[list[int]], name: str
) -> None:
    """Keepalive detects it on both sides: requests go on elsewhere, and the sessions are freed."""
    with Load(wired.orchestrators, requests, undisturbed) as load:
        load.wait_until_under_way()
        wired.wires[name].hold()
    load.tally.assert_none_lost()  # although the proxy still holds everything back
    wired.wait_until_free()
    wired.wires[name].release()
    with Load(wired.orchestrators, requests, undisturbed, once=True) as again:
        pass
    again.tally.assert_none_lost()
