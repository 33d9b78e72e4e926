"""Fixtures of the fault tests.

One fleet serves the faults that are over within seconds; the other tests run by `make test-faults`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.client import Case
from tests.faults.fleet import Fleet
from tests.faults.load import decode_without_faults, make_cases
from tests.support.opt_in import only_on_request

WANTED = "TEST_FAULTS"
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests that take minutes unless they are requested."""
    chosen = [item for item in items if item.get_closest_marker("faults")]
    only_on_request(
        chosen, variable=WANTED, timeout_s=TIMEOUT_S, reason="takes minutes: run `make test-faults`"
    )


@pytest.fixture(scope="session")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two processes of every role."""
    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Iterator[Fleet]:
    """The shared fleet, complete; afterwards no session, request or traceback may be left."""
    shared_fleet.wait_until_complete()
    yield shared_fleet
    shared_fleet.wait_until_free()
    for role in ("orchestrator", "drafter", "verifier"):
        assert "Traceback" not in shared_fleet.log(role)


@pytest.fixture(scope="session")
def requests() -> list[Case]:
    """One request for each of sixteen clients."""
    return make_cases()


@pytest.fixture(scope="session")
def fault_free_outputs(shared_fleet: Fleet, requests: list[Case]) -> list[list[int]]:
    """The output that each request must have, token for token."""
    return decode_without_faults(shared_fleet.orchestrators[0], requests)
