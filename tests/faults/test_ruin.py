"""A verifier whose forwards go on to fail ends by itself, and another replica goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.role_process import MODULES
from tests.e2e.client import Case
from tests.faults.fleet import Fleet
from tests.faults.load import Load
from tests.support.sick_verifier import SICK

GONE_S = 60.0  # whoever failed is asked less and less often


@pytest.fixture(scope="module")
def delicate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Its verifiers fall sick when they are told to."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(MODULES, "verifier", "tests.support.sick_verifier")
        with Fleet(tmp_path_factory.mktemp("delicate"), orchestrators=1) as fleet:
            yield fleet


def test_a_verifier_that_only_fails_ends_but_no_request(
    delicate: Fleet, requests: list[Case], undisturbed: list[list[int]]
) -> None:
    """Its health would go on to say that all is well, and every request to try it first."""
    verifier = delicate.processes["v1"]
    sick = verifier.log_file.with_name(SICK)
    with Load(delicate.orchestrators, requests, undisturbed) as load:
        load.wait_until_under_way()
        sick.touch()
        assert verifier.ended(GONE_S) == 1
        sick.unlink()
        delicate.whole()
    load.tally.assert_none_lost()
    (said,) = (line for line in verifier.log().splitlines() if "forwards go on to fail" in line)
    assert "illegal memory access" in said
