"""Wires between services that are cut, or go silent without anybody hanging up."""

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
    """One orchestrator, with a wire of its own to each of the others."""
    with Fleet(tmp_path_factory.mktemp("wired"), orchestrators=1, wired=True) as fleet:
        yield fleet


@pytest.mark.faults
@pytest.mark.parametrize("name", ["v1", "d1"])
def test_a_cut_wire(
    wired: Fleet, requests: list[Case], undisturbed: list[list[int]], name: str
) -> None:
    """A reset instead of a farewell, several times."""
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
    """Keepalive finds it on both sides: the requests go on elsewhere, the sessions are freed."""
    with Load(wired.orchestrators, requests, undisturbed) as load:
        load.wait_until_under_way()
        wired.wires[name].hold()
    load.tally.assert_none_lost()  # though nothing was released
    wired.wait_until_free()
    wired.wires[name].release()
    with Load(wired.orchestrators, requests, undisturbed, once=True) as again:
        pass
    again.tally.assert_none_lost()
