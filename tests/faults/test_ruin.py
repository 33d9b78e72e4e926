"""A verifier whose forward passes keep failing ends by itself, and another replica takes over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftloop.runtime.ruin import MAX_CONSECUTIVE_FAILURES
from draftloop.speculation import AUTOREGRESSIVE
from orchestrator.role_process import MODULES
from tests.e2e.client import Case, held_out_prompts
from tests.faults.fleet import Fleet
from tests.faults.load import Load, Refused, decode_without_faults, stream_by_grpc
from tests.support.sick_verifier import SICK

LONG = 120  # tokens, more than any other request has
GONE_S = 60.0  # a failing replica gets ever fewer requests


@pytest.fixture(scope="module")
def failing_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose verifiers start to fail when a test says so."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(MODULES, "verifier", "tests.support.sick_verifier")
        with Fleet(tmp_path_factory.mktemp("delicate"), orchestrators=1) as fleet:
            yield fleet


def test_requests_that_no_verifier_can_run_end_no_other_request(
    failing_fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """A request that no verifier can run fails on each in turn; all other requests are answered."""
    verifiers = [failing_fleet.processes[name] for name in ("v1", "v2")]
    places = [verifier.log_file.with_name(SICK) for verifier in verifiers]
    (prompt,) = held_out_prompts(1, longest=LONG)
    orchestrator = failing_fleet.orchestrators[0]
    for place in places:
        place.write_text(str(LONG - 1))
    for _ in range(MAX_CONSECUTIVE_FAILURES + 1):
        with pytest.raises(Refused, match="internal error"):
            list(stream_by_grpc(orchestrator, Case(prompt, 1), AUTOREGRESSIVE))
    assert decode_without_faults(orchestrator, requests[:1]) == fault_free_outputs[:1]
    assert all(verifier.alive for verifier in verifiers)
    for place in places:
        place.unlink()
    assert list(stream_by_grpc(orchestrator, Case(prompt, 1), AUTOREGRESSIVE))


def test_verifier_whose_forwards_all_fail_ends_but_no_request(
    failing_fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """Otherwise its health would stay good, and every request would try this verifier first."""
    verifier = failing_fleet.processes["v1"]
    sick = verifier.log_file.with_name(SICK)
    with Load(failing_fleet.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        sick.touch()
        assert verifier.wait_for_exit(GONE_S) == 1
        sick.unlink()
        failing_fleet.wait_until_complete()
    load.tally.assert_none_lost()
    (log_line,) = (line for line in verifier.log().splitlines() if "forwards go on to fail" in line)
    assert "illegal memory access" in log_line
