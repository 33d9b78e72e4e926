"""`make test-bench`: every documented benchmark, at its smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.opt_in import only_on_request, tests_below

WANTED = "TEST_BENCH"
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips these tests unless they are requested: they take minutes and disturb one another."""
    chosen = tests_below(Path(__file__).parent, items)
    reason = "takes minutes: run `make test-bench`"
    only_on_request(chosen, variable=WANTED, timeout_s=TIMEOUT_S, reason=reason)
