"""The processes of a split model end together, and another replica serves the requests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.client import Case
from tests.faults.fleet import Fleet
from tests.faults.load import Load
from tests.support.waiting import until

GONE_S = 20.0


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose verifiers are split over two processes each."""
    flags = {"verifier": ["--tensor-parallel-size", "2"]}
    with Fleet(tmp_path_factory.mktemp("split"), orchestrators=1, flags=flags) as fleet:
        yield fleet


def follower(fleet: Fleet, name: str) -> psutil.Process:
    """The only other process of a verifier."""
    (process,) = psutil.Process(fleet.processes[name].pid).children()
    return process


def test_a_rank_takes_its_service_along_but_no_request(
    split: Fleet, requests: list[Case], undisturbed: list[list[int]]
) -> None:
    with Load(split.orchestrators, requests, undisturbed) as load:
        load.wait_until_under_way()
        follower(split, "v1").kill()
        assert split.processes["v1"].ended(GONE_S) == 1
        split.whole()
    load.tally.assert_none_lost()


def test_a_leader_that_is_killed_leaves_nobody_behind(split: Fleet) -> None:
    left = follower(split, "v1")
    split.processes["v1"].kill()
    until(lambda: not left.is_running(), GONE_S)
    split.whole()


def test_told_to_end_it_ends_well_with_all_its_ranks(split: Fleet) -> None:
    """SIGTERM to all processes, as service managers send it, ends the service with status 0."""
    left = follower(split, "v2")
    left.send_signal(signal.SIGTERM)
    split.processes["v2"].send(signal.SIGTERM)
    assert split.processes["v2"].ended(GONE_S) == 0
    assert not left.is_running()
