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
def split_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose verifiers are split over two processes each."""
    flags = {"verifier": ["--tensor-parallel-size", "2"]}
    with Fleet(tmp_path_factory.mktemp("split"), orchestrators=1, flags=flags) as fleet:
        yield fleet


def follower(fleet: Fleet, name: str) -> psutil.Process:
    """The only other process of a verifier."""
    (process,) = psutil.Process(fleet.processes[name].pid).children()
    return process


def test_killed_rank_ends_its_service_but_no_request(
    split_fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    with Load(split_fleet.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        follower(split_fleet, "v1").kill()
        assert split_fleet.processes["v1"].wait_for_exit(GONE_S) == 1
        split_fleet.wait_until_complete()
    load.tally.assert_none_lost()


def test_killed_leader_leaves_no_rank_running(split_fleet: Fleet) -> None:
    rank = follower(split_fleet, "v1")
    split_fleet.processes["v1"].kill()
    until(lambda: not rank.is_running(), GONE_S)
    split_fleet.wait_until_complete()


def test_sigterm_ends_all_ranks_with_status_0(split_fleet: Fleet) -> None:
    """SIGTERM to all processes, as service managers send it, ends the service with status 0."""
    rank = follower(split_fleet, "v2")
    rank.send_signal(signal.SIGTERM)
    split_fleet.processes["v2"].send(signal.SIGTERM)
    assert split_fleet.processes["v2"].wait_for_exit(GONE_S) == 0
    assert not rank.is_running()
